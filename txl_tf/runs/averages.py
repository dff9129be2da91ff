"""The mean of the weights of several checkpoints of a run, as a checkpoint of its own.

It is the files `averaged/ckpt-STEP.*` of the run folder, named after the newest: weights alone, so
it can be evaluated and warm a new run up, and no run goes on from it.
"""

import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from txl_tf.errors import UserError, explain_errors
from txl_tf.runs.checkpoint_files import PREFIX, list_checkpoints, remove_checkpoint
from txl_tf.runs.checkpoint_reader import DAMAGE, CheckpointReader
from txl_tf.runs.checkpoint_writer import explain_failed_save, write_checkpoint
from txl_tf.runs.files import exists
from txl_tf.runs.folder import read_run_config

AVERAGED_NAME = "averaged"


def choose_checkpoints(
    model_dir: str, *, last: int, steps: Sequence[int] | None = None
) -> list[tuple[int, str]]:
    """Returns step and path of the checkpoints of a run that are to be averaged, ascending.

    Args:
        model_dir: run folder.
        last: how many of the newest; all where there are fewer.
        steps: those of these steps instead.

    Raises:
        UserError: the folder holds no run, a step is not there, or they are fewer than 2.
    """
    read_run_config(model_dir)  # raises if there is no run
    checkpoints = list_checkpoints(model_dir)
    if steps is None:
        chosen = checkpoints[-last:]
    else:
        known = ", ".join(str(step) for step, _ in checkpoints) or "none"
        missing = set(steps) - {step for step, _ in checkpoints}
        if missing:
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


def average_weights(paths: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the mean of each weight over checkpoints, added up in float64, as float32.

    Args:
        paths: of checkpoints of one model.

    Raises:
        UserError: a checkpoint cannot be read or is not what its name says, or they are of
            different models.
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


def has_moving_averages(paths: Sequence[str]) -> bool:
    """Tells whether checkpoints that can be read hold moving averages beside their weights."""
    return any(CheckpointReader(path).list_shapes("averages") for path in paths)


def find_place(model_dir: str, step: int, *, overwrite: bool = False) -> str:
    """Returns the path of the average whose newest checkpoint is of a step.

    Raises:
        UserError: there is one already, which is not to be overwritten.
    """
    path = os.path.join(model_dir, AVERAGED_NAME, f"{PREFIX}-{step}")
    if exists(f"{path}.index") and not overwrite:
        raise UserError(f"{path} is there already: --overwrite would replace it")
    return path


def save_weights(path: str, weights: dict[str, np.ndarray]) -> None:
    """Writes weights as a checkpoint, in the place of one that may be there.

    Args:
        path: of the checkpoint.
        weights: by the names that they have in a checkpoint.

    Raises:
        UserError: it could not be written; there is none then.
    """
    remove_checkpoint(path)
    variables = {name: tf.Variable(value) for name, value in weights.items()}
    with explain_failed_save(path):
        write_checkpoint(path, {"weights": variables})
