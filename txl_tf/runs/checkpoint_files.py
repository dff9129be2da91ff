"""The files of a run's checkpoints.

A checkpoint is the set of files `checkpoints/ckpt-STEP.*` of a run folder. The memory is written
first, then weights and optimizer, whose `.index` tensorflow writes last. A checkpoint that has an
index is therefore complete, and no other file lists the checkpoints.

Files without an index have one of three causes. While tensorflow saves, there is a folder
`ckpt-STEP_temp`, which it removes after it has written the index. While a checkpoint is removed,
its index is called `ckpt-STEP.removing`. Weights with neither belong to a checkpoint that has lost
its index.
"""

import os
import re
from collections.abc import Callable

import tensorflow as tf

from txl_tf.data.files import access_path
from txl_tf.errors import UserError
from txl_tf.runs.files import exists, list_names

CHECKPOINTS_NAME = "checkpoints"
PREFIX = "ckpt"
DAMAGED = "damaged-"  # prefix of the names of files that were set aside
REMOVING = ".removing"  # suffix of the index of a checkpoint that is being removed


def list_checkpoints(model_dir: str) -> list[tuple[int, str]]:
    """Returns the step and path of each complete checkpoint of a run, oldest first."""
    folder = os.path.join(model_dir, CHECKPOINTS_NAME)
    indices = (re.fullmatch(rf"{PREFIX}-(\d+)\.index", name) for name in list_names(folder))
    steps = sorted(int(match[1]) for match in indices if match)
    return [(step, make_path(model_dir, step)) for step in steps]


def make_path(model_dir: str, step: int) -> str:
    """Returns the path of the checkpoint of a step, whether or not it exists."""
    return os.path.join(model_dir, CHECKPOINTS_NAME, f"{PREFIX}-{step}")


def read_step(path: str) -> int:
    """Returns the step in the name of a checkpoint, `.../ckpt-STEP`.

    Raises:
        UserError: If the name does not end in a step.
    """
    match = re.search(r"-(\d+)$", path)
    if not match:
        raise UserError(f"{path!r} does not end in a step, as in ckpt-1000")
    return int(match[1])


def find_checkpoint(model_dir: str) -> str:
    """Returns the path of the newest checkpoint of a run.

    Raises:
        UserError: If there is none.
    """
    checkpoints = list_checkpoints(model_dir)
    if not checkpoints:
        raise UserError(f"`{model_dir}` holds no checkpoint")
    return checkpoints[-1][1]


def _list_parts(path: str) -> list[str]:
    """Returns the files of a checkpoint, the index first: without it the rest does not count."""
    folder, name = os.path.split(path)
    parts = [part for part in list_names(folder) if part.startswith(f"{name}.")]
    parts.sort(key=lambda part: part != f"{name}.index")
    return [os.path.join(folder, part) for part in parts]


def set_aside(path: str) -> None:
    """Renames the files of a checkpoint so that it is no longer found."""
    with access_path(path):
        for part in _list_parts(path):
            folder, name = os.path.split(part)
            tf.io.gfile.rename(part, os.path.join(folder, f"{DAMAGED}{name}"), overwrite=True)


def has_set_aside(model_dir: str) -> bool:
    """Returns whether a run folder holds files that `set_aside` has renamed."""
    names = list_names(os.path.join(model_dir, CHECKPOINTS_NAME))
    return any(name.startswith(DAMAGED) for name in names)


def clear_torn(model_dir: str, say: Callable[[str], None]) -> None:
    """Cleans up the files of checkpoints that have no index.

    The remains of an interrupted save or removal are removed. The files of a checkpoint that has
    lost its index are set aside.

    Args:
        model_dir: The run folder.
        say: Called with one line about each checkpoint.
    """
    folder = os.path.join(model_dir, CHECKPOINTS_NAME)
    complete = {os.path.basename(path) for _, path in list_checkpoints(model_dir)}
    found = (re.match(rf"{PREFIX}-\d+(?=[._])", name) for name in list_names(folder))
    for name in sorted({match[0] for match in found if match} - complete):
        path = os.path.join(folder, name)
        parts = [os.path.basename(part) for part in _list_parts(path)]
        is_interrupted = f"{name}{REMOVING}" in parts or exists(f"{path}_temp")
        if not is_interrupted and any(part.startswith(f"{name}.data-") for part in parts):
            set_aside(path)
            say(
                f"Checkpoint {path} has lost its index and was set aside: "
                f"{', '.join(DAMAGED + part for part in parts)}"
            )
        else:
            remove_checkpoint(path)
            remains = ", ".join(parts) or f"{name}_temp"
            say(
                f"Removed the remains of an interrupted save or removal of checkpoint {path}: "
                f"{remains}"
            )


def remove_checkpoint(path: str) -> None:
    """Removes a checkpoint, its index first, and the remains of an interrupted save."""
    with access_path(path):
        parts = _list_parts(path)
        if f"{path}.index" in parts:
            tf.io.gfile.rename(f"{path}.index", f"{path}{REMOVING}", overwrite=True)
        for part in parts:
            if part not in (f"{path}.index", f"{path}{REMOVING}"):
                tf.io.gfile.remove(part)
        if tf.io.gfile.exists(f"{path}_temp"):
            tf.io.gfile.rmtree(f"{path}_temp")
        if tf.io.gfile.exists(f"{path}{REMOVING}"):
            tf.io.gfile.remove(f"{path}{REMOVING}")
