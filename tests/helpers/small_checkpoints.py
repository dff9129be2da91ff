"""What the tests of checkpoints share."""

import os
import shutil

import tensorflow as tf
from small_runs import (
    MEM_LEN,
    MODEL,
    TRAINING,
)

import txl_tf
from txl_tf.training.checkpoint import Checkpointer
from txl_tf.training.replica_memory import ReplicaMemory
from txl_tf.training.workers import Workers

RUN_ID = "00112233aabb"


class Bare:
    """Model and optimizer without a trainer: they can be saved, and cost no trace."""

    def __init__(self, model=MODEL):
        self.model = txl_tf.TransformerXL(model, seed=3)
        self.optimizer = txl_tf.training.make_optimizer(TRAINING)
        self.optimizer.build(self.model.trainable_variables)
        workers = Workers(tf.distribute.get_strategy())
        self.memory = ReplicaMemory(workers, self.model, TRAINING.train_batch_size, MEM_LEN)

    def set_step(self, step):
        self.optimizer.iterations.assign(step)


def make_checkpointer(model_dir, run, *, run_id=RUN_ID, **kwargs):
    parts = (run.model, run.optimizer, run.memory, Workers(tf.distribute.get_strategy()))
    return Checkpointer(str(model_dir), *parts, run_id=run_id, **kwargs)


def copy_checkpoint(source, target, part="*"):
    """Copies the files of a checkpoint under the name of another one."""
    for path in source.parent.glob(f"{source.name}.{part}"):
        name = path.name.replace(source.name, target.name, 1)
        shutil.copy(path, target.parent / name)


def save_steps(checkpointer, run, steps):
    for step in steps:
        run.set_step(step)
        checkpointer.save()


def cut(path):
    """Leaves the first half of a file."""
    os.truncate(path, os.path.getsize(path) // 2)


def flip(path):
    """Changes a bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
