"""The files of a run's checkpoints.

A checkpoint is the set of files `checkpoints/ckpt-STEP.*` of a run folder. The memory is written
first, then weights and optimizer, whose `.index` tensorflow writes last, from a folder
`ckpt-STEP_temp`. A checkpoint that has an index is therefore complete, and no other file lists the
checkpoints. Files without an index are the remains of a save or removal that was interrupted.
"""

import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import safetensors

from txl_tf.data.files import access_path, exists, list_names, read_json_lines
from txl_tf.errors import UserError, explain_errors
from txl_tf.runs.folder import VALIDATION_NAME

CHECKPOINTS_NAME = "checkpoints"
PREFIX = "ckpt"
DAMAGED = "damaged-"  # prefix of the names of files that were set aside
BEST, NEWEST = "best", "newest"
RELEASE_SCOPE = "transformer/"  # the scope of all weights in checkpoints of the 2019 release
WEIGHTS_NAME = "model.safetensors"  # the weights alone, in a folder without checkpoints
WEIGHTS_FORMAT = "txl_tf"  # under the key `format`, by which readers of other libraries know files


def list_checkpoints(model_dir: str) -> list[tuple[int, str]]:
    """Returns the step and path of each complete checkpoint of a run, oldest first."""
    check_checkpoint_path(model_dir)
    folder = os.path.join(model_dir, CHECKPOINTS_NAME)
    indices = (re.fullmatch(rf"{PREFIX}-(\d+)\.index", name) for name in list_names(folder))
    steps = sorted(int(match[1]) for match in indices if match)
    return [(step, make_path(model_dir, step)) for step in steps]


def check_checkpoint_path(path: str) -> None:
    """Checks that TensorFlow does not take a path of checkpoints for a glob pattern."""
    if re.search(r"[*?\[]", path):
        raise UserError(
            f"`{path}` must not contain *, ? or [: TensorFlow reads them as a pattern in paths of "
            "checkpoints. Rename the folder"
        )


def _name_needed(path: str) -> str:
    """Returns the file without which there is no checkpoint at a path."""
    return path if is_weights_file(path) else f"{path}.index"


def is_there(path: str) -> bool:
    """Returns whether there is a complete checkpoint, or a file of weights, at a path."""
    return exists(_name_needed(path))


def check_exists(path: str) -> None:
    """Checks that there is a checkpoint at a path.

    In the 2019 code: `checkpoint_exists`.
    """
    if not is_there(path):
        hint = ". It is a folder: name one of its files ckpt-STEP.index, without .index"
        raise UserError(
            f"checkpoint {path} cannot be restored: {_name_needed(path)} is missing"
            f"{hint if os.path.isdir(path) else ''}"
        )


def is_weights_file(path: str) -> bool:
    """Returns whether a path is that of a file of weights, and not of a checkpoint."""
    return path.endswith(".safetensors")


@contextmanager
def open_weights(path: str) -> Iterator[Any]:
    """Opens a file of weights; a `UserError` tells if it cannot be read."""
    with (
        explain_errors(f"`{path}` cannot be read", safetensors.SafetensorError, OSError),
        safetensors.safe_open(path, framework="numpy") as file,
    ):
        yield file


def make_path(model_dir: str, step: int) -> str:
    """Returns the path of the checkpoint of a step, whether or not it exists."""
    return os.path.join(model_dir, CHECKPOINTS_NAME, f"{PREFIX}-{step}")


def read_step(path: str) -> int:
    """Returns the step in the name of a checkpoint, `.../ckpt-STEP`, or in a file of weights."""
    if is_weights_file(path):
        with open_weights(path) as file:
            return int((file.metadata() or {}).get("step", 0))
    match = re.search(r"-(\d+)$", path)
    if not match:
        raise UserError(f"{path!r} does not end in a step, as in ckpt-1000")
    return int(match[1])


def find_checkpoint(model_dir: str, choice: str | int | None = None) -> str:
    """Returns the path of a checkpoint of a run.

    Args:
        model_dir: The run folder.
        choice: "newest"; "best", the one with the lowest loss in the evaluations during training; a
            step; a name in the run folder, such as "ckpt-1000" or "averaged/ckpt-1000"; or a path.
            `None` stands for the newest, and prints a line if an older one was better.

    Returns:
        The path without `.index`; of `model.safetensors` if the folder holds that alone.
    """
    text = NEWEST if choice is None else str(choice).removesuffix(".index")
    if text not in (NEWEST, BEST) and not text.isdecimal():
        names = (os.path.join(CHECKPOINTS_NAME, text), text)
        paths = [os.path.join(model_dir, name) for name in names]
        path = next(filter(is_there, paths), text)
        check_exists(path)
        return path
    checkpoints = dict(list_checkpoints(model_dir))
    weights = os.path.join(model_dir, WEIGHTS_NAME)
    if not checkpoints and text == NEWEST and exists(weights):
        return weights
    if not checkpoints:
        raise UserError(f"`{model_dir}` holds no checkpoint")
    losses = _read_losses(model_dir)
    newest, best = max(checkpoints), find_best(losses)
    step = {NEWEST: newest, BEST: best}[text] if not text.isdecimal() else int(text)
    if step is None:
        raise UserError(
            f"`{model_dir}` has no best checkpoint: it was not evaluated during training "
            "(see --eval_every)"
        )
    if step not in checkpoints:
        known = ", ".join(map(str, checkpoints))
        raise UserError(f"`{model_dir}` holds no checkpoint of step {step}. There are: {known}")
    if choice is None and best in checkpoints and best != newest and best != max(losses):
        print(
            f"Reading step {newest}, the newest checkpoint of {model_dir}. Step {best} had the "
            "lowest loss in the evaluations during training: checkpoint=best reads it.",
            file=sys.stderr,
        )
    return checkpoints[step]


def find_best(losses: Mapping[int, float]) -> int | None:
    """Returns the first step with the lowest loss, which is no NaN if another one is none.

    >>> find_best({100: float("nan"), 200: 1.5, 300: 1.5})
    200
    """
    ranks = {step: (math.isnan(loss), loss) for step, loss in losses.items()}
    return min(ranks, key=ranks.__getitem__, default=None)


def _read_losses(model_dir: str) -> dict[int, float]:
    """Returns the loss in nats per token of each step that was evaluated during training.

    If the run changed to another split, it is that of the last evaluation.
    """
    path = os.path.join(model_dir, VALIDATION_NAME)
    return list_losses(path, read_json_lines(path) if exists(path) else [])


def list_losses(path: str, lines: Sequence[Any], split: str | None = None) -> dict[int, float]:
    """Returns the loss in nats per token of each step, given the lines of `validation.jsonl`.

    `split` is the one that counts; `None` for that of the last line.
    """
    kinds = (KeyError, TypeError, ValueError)
    with explain_errors(f"`{path}` does not hold evaluations of a run", *kinds):
        wanted = split or (lines[-1]["split"] if lines else None)
        own = [line for line in lines if line["split"] == wanted]
        return {line["step"]: float(line["loss_nats"]) for line in own}


def _list_parts(path: str) -> list[str]:
    """Returns the files of a checkpoint, the index first: without it the rest does not count."""
    folder, name = os.path.split(path)
    parts = [part for part in list_names(folder) if part.startswith(f"{name}.")]
    parts.sort(key=lambda part: part != f"{name}.index")
    return [os.path.join(folder, part) for part in parts]


def set_aside(path: str) -> None:
    """Renames the files of a checkpoint so that it is no longer found."""
    import tensorflow as tf

    with access_path(path):
        for part in _list_parts(path):
            folder, name = os.path.split(part)
            tf.io.gfile.rename(part, os.path.join(folder, f"{DAMAGED}{name}"), overwrite=True)


def has_set_aside(model_dir: str) -> bool:
    """Returns whether a run folder holds files that `set_aside` has renamed."""
    names = list_names(os.path.join(model_dir, CHECKPOINTS_NAME))
    return any(name.startswith(DAMAGED) for name in names)


def clear_torn(model_dir: str, say: Callable[[str], None]) -> None:
    """Removes what interrupted saves and removals have left: files without an index."""
    folder = os.path.join(model_dir, CHECKPOINTS_NAME)
    complete = {os.path.basename(path) for _, path in list_checkpoints(model_dir)}
    found = (re.match(rf"{PREFIX}-\d+(?=[._])", name) for name in list_names(folder))
    for name in sorted({match[0] for match in found if match} - complete):
        path = os.path.join(folder, name)
        remains = ", ".join(map(os.path.basename, _list_parts(path))) or f"{name}_temp"
        remove_checkpoint(path)
        say(
            f"Removed the remains of an interrupted save or removal of checkpoint {path}: {remains}"
        )


def remove_checkpoint(path: str) -> None:
    """Removes a checkpoint, its index first, and the remains of an interrupted save."""
    import tensorflow as tf

    with access_path(path):
        for part in _list_parts(path):
            tf.io.gfile.remove(part)
        if tf.io.gfile.exists(f"{path}_temp"):
            tf.io.gfile.rmtree(f"{path}_temp")
