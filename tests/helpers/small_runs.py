"""Tiny models, texts, records, runs and checkpoints that the tests of training share."""

import dataclasses
import json
import math
import os
import shutil
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

import txl_tf
from txl_tf.config.training import RunOptions
from txl_tf.data import Vocabulary, open_records, write_records
from txl_tf.data.records.writing import TokenChunk
from txl_tf.runs.folder import RunConfig
from txl_tf.training import job
from txl_tf.training.checkpoint import Checkpointer
from txl_tf.training.intervals import Interval, Pace
from txl_tf.training.replica_memory import ReplicaMemory
from txl_tf.training.trainer import Trainer
from txl_tf.training.workers import Workers

N_TOKEN, BATCH, TGT_LEN, MEM_LEN = 23, 6, 5, 7
# Wider initial weights than usual: attention and memory then matter from the first step.
MODEL = txl_tf.ModelConfig(
    n_token=N_TOKEN,
    n_layer=2,
    d_model=8,
    d_embed=8,
    n_head=3,
    d_head=5,
    d_inner=11,
    dropout=0.0,
    dropatt=0.0,
    init_std=0.3,
)
DROPPING = dataclasses.replace(MODEL, dropout=0.3, dropatt=0.2)
TRAINING = txl_tf.TrainConfig(
    learning_rate=1e-3,
    warmup_steps=3,
    train_steps=21,
    train_batch_size=BATCH,
    tgt_len=TGT_LEN,
    mem_len=MEM_LEN,
    seed=3,
    jit="none",
)
AVERAGING = dataclasses.replace(TRAINING, ema=0.8, learning_rate=0.02, optimizer="lamb")


class Text:
    """Tokens in memory, with the interface of a split."""

    def __init__(self, ids, document_starts=()):
        self.ids = np.asarray(ids, np.int32)
        self.document_starts = np.array(document_starts, np.int64)

    def __len__(self):
        return len(self.ids)

    def read(self, start, stop):
        return self.ids[start:stop]


TEXT = Text(np.random.default_rng(5).integers(0, N_TOKEN, 499))
# The same tokens as documents of 1 to 12 tokens: shorter than the memory, and longer.
DOCUMENTS = Text(TEXT.ids, np.cumsum(np.random.default_rng(7).integers(1, 13, 70)))
RESETTING = dataclasses.replace(TRAINING, reset_at_documents=True)


def make_lanes(config=TRAINING, text=TEXT):
    """Returns the lanes in which a run would read a text."""
    return job.make_lanes(SimpleNamespace(split=lambda _: text), config)


def make_trainer(strategy, model=MODEL, config=TRAINING, *, jit="none"):
    return Trainer(Workers(strategy), model, dataclasses.replace(config, jit=jit))


def run_calls(trainer, stops, lanes=None):
    """Trains up to each stop in one call to the device, and yields their metrics."""
    lanes = lanes or make_lanes(trainer.config)
    pace = Pace(trainer.step, stops, math.inf, changes=lanes.changes)
    for segments in trainer.read_ahead(lanes, pace):
        yield trainer.run(segments, pace)


def run_steps(trainer, stops, lanes=None):
    """Trains up to each stop; returns one `Interval` over all steps."""
    return Interval.join(list(run_calls(trainer, stops, lanes)))


def read_memory(trainer):
    """Returns the memory, for each layer the values of each replica."""
    return [
        np.split(states.numpy(), len(states) // trainer.rows) for states in trainer.memory.gather()
    ]


def read_variables(trainer):
    """Returns every weight and every variable of the optimizer, by path."""
    variables = trainer.model.weights + trainer.optimizer.variables
    return {variable.path: variable.numpy() for variable in variables}


def perturb(trainer):
    """Changes every weight and every variable of the optimizer."""
    for variable in trainer.model.weights + trainer.optimizer.variables:
        variable.assign(variable.numpy() * 2 + 1)


WORDS = Vocabulary("word", tuple(f"w{index}" for index in range(N_TOKEN)))
CONFIG = RunConfig(
    "words",
    dataclasses.replace(MODEL, n_layer=1),
    dataclasses.replace(TRAINING, train_steps=7),
    txl_tf.EvalConfig(eval_batch_size=2, tgt_len=11, mem_len=13),
)


def make_records(folder, document_starts=(), *, seed=7):
    ids = np.random.default_rng(seed).integers(0, N_TOKEN, 199)
    starts = np.array(document_starts, np.int64)
    chunks = TokenChunk(ids, starts), TokenChunk(ids[:61], starts[starts < 61])
    write_records(
        folder,
        dataset="words",
        vocabulary=WORDS,
        splits={"train": chunks[:1], "valid": chunks[1:]},
        tokens_per_record=31,
    )
    return open_records(folder)


def train(strategy, records, model_dir, config=CONFIG, **kwargs):
    names = [field.name for field in dataclasses.fields(RunOptions)]
    given = {name: kwargs.pop(name) for name in names if name in kwargs}
    options = RunOptions(**{"iterations": 2, "save_steps": 3, **given})
    training = job.TrainJob(str(model_dir), records, config, options, **kwargs)
    loop = job.open_training(training, Workers(strategy))
    return loop.run() if loop else None


def read_log_steps(model_dir):
    lines = (model_dir / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


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
