"""Runs from tiny records of words that tests of training share."""

import dataclasses
import json

import numpy as np
from small_runs import MODEL, N_TOKEN, TRAINING

import txl_tf
from txl_tf.config.training import RunOptions
from txl_tf.data import Vocabulary, open_records, write_records
from txl_tf.data.records.writing import TokenChunk
from txl_tf.runs.folder import RunConfig
from txl_tf.training import job
from txl_tf.training.workers import Workers

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
    job.train(training, Workers(strategy))


def read_log_steps(model_dir):
    lines = (model_dir / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]
