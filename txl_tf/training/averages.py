"""Averages of weights: those that a run keeps, and the mean of its checkpoints.

The optimizer updates the average of each weight: an EMA, or the mean since some step; see
`txl_tf.training.optimizer`. The mean of several checkpoints is itself a checkpoint,
`averaged/ckpt-STEP.*` in the run folder, named after the newest of them. It holds only weights: it
can be evaluated and can warm-start a new run, but a run cannot resume from it.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from txl_tf.data.files import exists, read_json_lines, write_text
from txl_tf.errors import UserError, explain_errors
from txl_tf.runs.checkpoint import (
    AVERAGES_GROUP,
    DAMAGE,
    CheckpointReader,
    remove_checkpoint,
    write_checkpoint,
)
from txl_tf.runs.checkpoint_choice import PREFIX, find_checkpoint, list_checkpoints
from txl_tf.runs.folder import EVALUATIONS_NAME, read_run_config
from txl_tf.training.optimizer import Optimizer

FOLDER_NAME = "averaged"


@contextlib.contextmanager
def use_averages(optimizer: Optimizer) -> Iterator[None]:
    """Swaps the weights with their averages, and swaps them back afterwards, bit for bit.

    Variables are swapped one by one, so only one extra tensor is held at a time. Nothing happens
    if the optimizer keeps no averages. Must be called outside any replica.
    """
    swapped = []
    try:
        for pair in optimizer.averaged_weights:
            _swap(*pair)
            swapped.append(pair)
        yield
    finally:
        for pair in swapped:
            _swap(*pair)


def _swap(one: keras.Variable, other: keras.Variable) -> None:
    kept = tf.identity(one)
    one.assign(other)
    other.assign(kept)


def choose_checkpoints(
    model_dir: str, *, last: int, steps: Sequence[int] | None = None
) -> list[tuple[int, str]]:
    """Returns the steps and paths of the `last` checkpoints, or of those of `steps`, in order."""
    read_run_config(model_dir)  # raises if there is no run
    if steps is None:
        chosen = list_checkpoints(model_dir)[-last:]
    else:
        chosen = [(step, find_checkpoint(model_dir, step)) for step in sorted(set(steps))]
    if len(chosen) < 2:
        raise UserError(
            f"2 or more checkpoints of `{model_dir}` are needed for an average. "
            f"Received: {len(chosen)}"
        )
    return chosen


def save_mean(
    model_dir: str, checkpoints: Sequence[tuple[int, str]], *, overwrite: bool = False
) -> tuple[str, bool]:
    """Saves the float32 mean of the weights of checkpoints, summed in float64.

    Returns:
        The path of the mean, and whether any of the checkpoints also holds averages, which are
        ignored.
    """
    mean_path = os.path.join(model_dir, FOLDER_NAME, f"{PREFIX}-{checkpoints[-1][0]}")
    if exists(f"{mean_path}.index") and not overwrite:
        raise UserError(f"{mean_path} already exists: pass --overwrite to replace it")
    readers, shapes = [], []
    for _, path in checkpoints:
        with explain_errors(f"checkpoint {path} cannot be read", *DAMAGE):
            readers.append(CheckpointReader(path))
            readers[-1].check_place()
            shapes.append(readers[-1].list_shapes("weights"))
        if shapes[-1] != shapes[0]:
            raise UserError(f"checkpoints {readers[0].path} and {path} are of different models")
    means = {name: tf.Variable(_compute_mean(readers, name)) for name in shapes[0]}
    remove_checkpoint(mean_path)
    _forget_evaluations(model_dir, mean_path)
    config = read_run_config(model_dir).model
    write_checkpoint(mean_path, {"weights": means}, config, readers[-1].origin)
    return mean_path, any(reader.list_shapes(AVERAGES_GROUP) for reader in readers)


def _forget_evaluations(model_dir: str, mean_path: str) -> None:
    """Removes the evaluations of a mean that is about to be replaced."""
    path, end = os.path.join(model_dir, EVALUATIONS_NAME), os.path.relpath(mean_path, model_dir)
    records = read_json_lines(path)
    kept = [x for x in records if not f"/{x.get('checkpoint')}".endswith(f"/{end}")]
    if len(kept) < len(records):
        write_text(path, "".join(f"{json.dumps(record)}\n" for record in kept))


def _compute_mean(readers: Sequence[CheckpointReader], name: str) -> np.ndarray:
    total = np.zeros((), np.float64)
    for reader in readers:
        with explain_errors(f"checkpoint {reader.path} cannot be read", *DAMAGE):
            total = total + reader.read("weights", name)
    return np.asarray(total / len(readers), np.float32)
