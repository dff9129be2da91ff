"""Checkpoint averaging: the mean of the weights of several checkpoints of a run.

The mean is a checkpoint itself, `averaged/ckpt-STEP.*` in the run folder, named after the newest
checkpoint that it was computed from. It holds weights only: it can be evaluated and can warm-start
a new run, but no run resumes from it.
"""

import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from txl_tf.data.files import exists
from txl_tf.errors import UserError, explain_errors
from txl_tf.runs.checkpoint_files import PREFIX, list_checkpoints, remove_checkpoint
from txl_tf.runs.checkpoint_reader import AVERAGES_GROUP, DAMAGE, CheckpointReader
from txl_tf.runs.checkpoint_writer import explain_failed_save, write_checkpoint
from txl_tf.runs.folder import read_run_config

FOLDER_NAME = "averaged"


def choose_checkpoints(
    model_dir: str, *, last: int, steps: Sequence[int] | None = None
) -> list[tuple[int, str]]:
    """Returns the step and path of each checkpoint to average, in ascending order.

    Args:
        model_dir: The run folder.
        last: The number of newest checkpoints to take; all of them if there are fewer.
        steps: The steps of the checkpoints to take instead.

    Raises:
        UserError: If the folder holds no run, a step has no checkpoint, or fewer than 2
            checkpoints are chosen.
    """
    read_run_config(model_dir)  # raises if there is no run
    checkpoints = list_checkpoints(model_dir)
    if steps is None:
        chosen = checkpoints[-last:]
    else:
        missing = set(steps) - {step for step, _ in checkpoints}
        if missing:
            known = ", ".join(str(step) for step, _ in checkpoints) or "none"
            raise UserError(
                f"`{model_dir}` holds no checkpoint of step {min(missing)}. There are: {known}"
            )
        chosen = [pair for pair in checkpoints if pair[0] in steps]
    if len(chosen) < 2:
        raise UserError(
            f"2 or more checkpoints of `{model_dir}` are needed for an average. "
            f"Received: {len(chosen)}"
        )
    return chosen


def compute_mean(paths: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the float32 mean of each weight over several checkpoints, summed in float64.

    Args:
        paths: The paths of checkpoints of one model.

    Raises:
        UserError: If a checkpoint cannot be read or does not match its name, or if the
            checkpoints belong to different models.
    """
    shapes, readers = [], []
    for path in paths:
        with explain_errors(f"checkpoint {path} cannot be read", *DAMAGE):
            readers.append(CheckpointReader(path))
            readers[-1].check_place()
            shapes.append(readers[-1].list_shapes("weights"))
        if shapes[-1] != shapes[0]:
            raise UserError(f"checkpoints {paths[0]} and {path} are of different models")
    means = {}
    for name, shape in shapes[0].items():
        total = np.zeros(shape, np.float64)
        for path, reader in zip(paths, readers, strict=True):
            with explain_errors(f"checkpoint {path} cannot be read", *DAMAGE):
                total += reader.read("weights", name)
        means[name] = (total / len(paths)).astype(np.float32)
    return means


def has_averages(paths: Sequence[str]) -> bool:
    """Returns whether any of several readable checkpoints holds averaged weights as well."""
    return any(CheckpointReader(path).list_shapes(AVERAGES_GROUP) for path in paths)


def make_mean_path(model_dir: str, step: int, *, overwrite: bool = False) -> str:
    """Returns the path of the mean whose newest checkpoint is of a step.

    Raises:
        UserError: If that file exists and must not be overwritten.
    """
    path = os.path.join(model_dir, FOLDER_NAME, f"{PREFIX}-{step}")
    if exists(f"{path}.index") and not overwrite:
        raise UserError(f"{path} already exists: pass --overwrite to replace it")
    return path


def save_mean(path: str, weights: dict[str, np.ndarray]) -> None:
    """Writes weights as a checkpoint and replaces an existing one.

    Args:
        path: The path of the checkpoint.
        weights: The weights, under their names in a checkpoint.

    Raises:
        UserError: If it cannot be written. Nothing is left of it then.
    """
    remove_checkpoint(path)
    variables = {name: tf.Variable(value) for name, value in weights.items()}
    with explain_failed_save(path):
        write_checkpoint(path, {"weights": variables})
