"""The training program on tiny records of words, w0 to w10, that tests of programs share."""

import json
import re

import numpy as np
import tensorflow as tf
from places import ROOT

from benchmarks.flag_texts import keep_last
from txl_tf.data import Vocabulary, write_records
from txl_tf.programs import train as train_gpu
from txl_tf.runs.checkpoint_choice import list_checkpoints

PROGRAM = ROOT / "train_gpu.py"
N_TOKEN, N_VALID, N_TEST = 11, 101, 149
FLAGS = {
    "n_layer": 1,
    "d_model": 8,
    "d_embed": 8,
    "n_head": 3,
    "d_head": 5,
    "d_inner": 13,
    "tgt_len": 5,
    "mem_len": 7,
    "train_batch_size": 3,
    "eval_batch_size": 2,
    "train_steps": 12,
    "save_steps": 4,
    "iterations": 4,
    "learning_rate": 0.01,
}


def write_data(folder):
    return write_words(folder, seed=3, train=307, valid=N_VALID)


def make_arguments(data_dir, model_dir, *more):
    places = [f"--data_dir={data_dir}", f"--model_dir={model_dir}"]
    shape = (f"--{name}={value}" for name, value in FLAGS.items())
    return keep_last([*places, *shape, "--jit=none", *more])


def run_main(data_dir, model_dir, *more):
    return train_gpu.main(["train_gpu.py", *make_arguments(data_dir, model_dir, *more)])


def read_scores(out):
    """Returns step and loss of each evaluation that was printed."""
    found = re.findall(r"^valid at step (\d+): loss ([\d.]+) nats", out, flags=re.MULTILINE)
    return [(int(step), float(loss)) for step, loss in found]


def read_log(model_dir):
    return [json.loads(line) for line in (model_dir / "log.jsonl").read_text().splitlines()]


def read_weights(model_dir):
    """Returns every number of a run's newest checkpoint, without its memory."""
    reader = tf.train.load_checkpoint(list_checkpoints(str(model_dir))[-1][1])
    dtypes = reader.get_variable_to_dtype_map()
    names = [n for n in dtypes if "VARIABLE_VALUE" in n and dtypes[n] != tf.string]  # the run's id
    return [np.asarray(reader.get_tensor(name)) for name in sorted(names)]


def write_words(folder, level="word", n_token=N_TOKEN, *, seed=7, **lengths):
    """Writes records with random splits of these lengths, and returns the folder."""
    rng = np.random.default_rng(seed)
    name = "w{}" if level == "word" else "{}"
    splits = {split: [rng.integers(0, n_token, length)] for split, length in lengths.items()}
    symbols = tuple(name.format(index) for index in range(n_token))
    write_records(
        folder,
        dataset="words",
        vocabulary=Vocabulary(level, symbols),
        splits=splits,
        tokens_per_record=53,
    )
    return folder
