"""The step and the run that made each part of a checkpoint, as the part itself says.

The file of the weights and each file of the memory hold both, so that parts of several checkpoints
are not taken for one. Those of older versions hold neither; there the optimizer's count of steps
tells the step of the weights.
"""

import os
import re
from typing import NamedTuple

import tensorflow as tf

from txl_tf.errors import UserError
from txl_tf.training.checkpoint_files import CHECKPOINTS_NAME, PREFIX
from txl_tf.training.files import open_checkpoint
from txl_tf.training.run_folder import read_run_id

_GROUP = "origin"
_VARIABLE = "/.ATTRIBUTES/VARIABLE_VALUE"  # ends the names of what a `tf.train.Checkpoint` writes
_STEP_COUNT = re.compile(rf"optimizer/[^/]*\.iteration{re.escape(_VARIABLE)}")


class Origin(NamedTuple):
    """What made a part of a checkpoint.

    Args:
        step: the step; `None` where the part does not say.
        run_id: the run's; `None` where the part does not say.
    """

    step: int | None
    run_id: str | None

    def __str__(self) -> str:
        if self == (None, None):
            return "neither step nor run"
        return f"step {self.step}" + (f" of run {self.run_id}" if self.run_id else "")


def make_origin_tensors(origin: Origin) -> dict[str, tf.Tensor]:
    """Returns what a file of memory says of itself, by name."""
    tensors = {f"{_GROUP}/step": tf.constant(origin.step, tf.int64)}
    if origin.run_id:
        tensors[f"{_GROUP}/run_id"] = tf.constant(origin.run_id)
    return tensors


def make_origin_group(origin: Origin) -> dict[str, dict[str, tf.Variable]]:
    """Returns what the file of the weights says of itself, by group and name."""
    group = {"step": tf.Variable(origin.step, dtype=tf.int64)}
    if origin.run_id:
        group["run_id"] = tf.Variable(origin.run_id)
    return {_GROUP: group}


def read_origin(path: str) -> Origin:
    """Reads what a file of weights, or of memory, says of itself.

    Args:
        path: of the file, without `.index`.

    Raises:
        Exception: one of `checkpoint_weights.DAMAGE`.
    """
    reader = open_checkpoint(path)

    def read(name: str) -> int | bytes | None:
        keys = (f"{_GROUP}/{name}", f"{_GROUP}/{name}{_VARIABLE}")
        return next((reader.get_tensor(key) for key in keys if reader.has_tensor(key)), None)

    step, run_id = read("step"), read("run_id")
    return Origin(
        None if step is None else int(step),
        run_id.decode() if isinstance(run_id, bytes) else None,
    )


def find_mismatch(path: str, step: int, run_id: str | None) -> str | None:
    """Returns how the weights of a checkpoint are not of a step of a run; `None` if they are.

    Args:
        path: of the checkpoint.
        step: the step that its name tells.
        run_id: of the run in whose folder it lies; `None` if that is not known.

    Raises:
        Exception: one of `checkpoint_weights.DAMAGE`.
    """
    origin = read_origin(path)
    found = origin.step if origin.step is not None else _read_step_count(path)
    if found not in (None, step):
        return f"it holds the weights of step {found}"
    if run_id and origin.run_id and origin.run_id != run_id:
        return f"it is of another run, {origin.run_id}; this one is {run_id}"
    return None


def check_origin(path: str) -> None:
    """Checks that a checkpoint is of the step in its name, and of the run in whose folder it lies.

    What has another name than `ckpt-STEP` passes, and so does what says nothing of itself.

    Args:
        path: of the checkpoint.

    Raises:
        UserError: it is of another step or run.
        Exception: one of `checkpoint_weights.DAMAGE`.
    """
    folder, name = os.path.split(path)
    match = re.fullmatch(rf"{PREFIX}-(\d+)", name)
    if not match:
        return
    model_dir, parent = os.path.split(folder)
    run_id = read_run_id(model_dir) if parent == CHECKPOINTS_NAME else None
    mismatch = find_mismatch(path, int(match[1]), run_id)
    if mismatch:
        raise UserError(f"checkpoint {path} is not what its place and its name say: {mismatch}")


def _read_step_count(path: str) -> int | None:
    """Returns how many steps the optimizer in a checkpoint has made; `None` if there is none."""
    reader = open_checkpoint(path)
    names = filter(_STEP_COUNT.fullmatch, reader.get_variable_to_shape_map())
    return next((int(reader.get_tensor(name)) for name in names), None)
