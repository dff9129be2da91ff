"""Tiny models, texts and loops that the tests of training share."""

import dataclasses
from types import SimpleNamespace

import numpy as np

import txl_tf
from txl_tf.training import job
from txl_tf.training.intervals import Interval
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


def run_steps(trainer, stops, lanes=None):
    """Trains up to each stop; returns one `Interval` over all steps."""
    return Interval.join(list(trainer.train(lanes or make_lanes(trainer.config), stops)))


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
