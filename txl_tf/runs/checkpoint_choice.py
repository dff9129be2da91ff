"""Lists the checkpoints of a run, and finds the one that a user chose; without TensorFlow.

A checkpoint is the set of files `checkpoints/ckpt-STEP.*` of a run folder. Its `.index` is written
last, so a checkpoint with an index is complete. No other file lists the checkpoints.
"""

import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from txl_tf.data.files import exists, list_names, read_json_lines
from txl_tf.errors import UserError, explain_errors

CHECKPOINTS_NAME = "checkpoints"
PREFIX = "ckpt"
BEST, NEWEST = "best", "newest"
VALIDATION_NAME = "validation.jsonl"
WEIGHTS_NAME = "model.safetensors"  # the weights alone, in a folder without checkpoints


def list_checkpoints(model_dir: str) -> list[tuple[int, str]]:
    """Returns the step and path of each complete checkpoint of a run, oldest first."""
    check_checkpoint_path(model_dir)
    folder = os.path.join(model_dir, CHECKPOINTS_NAME)
    indices = (re.fullmatch(rf"{PREFIX}-(\d+)\.index", name) for name in list_names(folder))
    steps = sorted(int(match[1]) for match in indices if match)
    return [(step, make_path(model_dir, step)) for step in steps]


def check_checkpoint_path(path: str) -> None:
    """Checks that TensorFlow will not read the path of a checkpoint as a glob pattern."""
    if re.search(r"[*?\[]", path):
        raise UserError(
            f"`{path}` must not contain *, ? or [: TensorFlow reads them as a pattern in paths of "
            "checkpoints. Rename the folder"
        )


def _name_needed(path: str) -> str:
    """Returns the file that must exist if there is a checkpoint at a path."""
    return path if is_weights_file(path) else f"{path}.index"


def is_there(path: str) -> bool:
    """Returns whether a path holds a complete checkpoint or is a weights file."""
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
    """Returns whether a path names a weights file instead of a checkpoint."""
    return path.endswith(".safetensors")


def make_path(model_dir: str, step: int) -> str:
    """Returns the path of the checkpoint of a step, whether or not it exists."""
    return os.path.join(model_dir, CHECKPOINTS_NAME, f"{PREFIX}-{step}")


def find_checkpoint(model_dir: str, choice: str | int | None = None) -> str:
    """Returns the path of a checkpoint of a run.

    Args:
        model_dir: The run folder.
        choice: "newest"; "best", the one with the lowest loss in the evaluations during training; a
            step; a name in the run folder, such as "ckpt-1000" or "averaged/ckpt-1000"; or a path.
            `None` stands for the newest, and prints a line if an older one was better.

    Returns:
        The path without `.index`, or that of `model.safetensors` if the folder has no checkpoints.
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
    """Returns the first step with the lowest loss; any number is better than NaN.

    >>> find_best({100: float("nan"), 200: 1.5, 300: 1.5})
    200
    """
    ranks = {step: (math.isnan(loss), loss) for step, loss in losses.items()}
    return min(ranks, key=ranks.__getitem__, default=None)


def _read_losses(model_dir: str) -> dict[int, float]:
    """Returns the loss in nats per token of each step that was evaluated during training.

    If the evaluated split changed, only losses on the last one are returned.
    """
    path = os.path.join(model_dir, VALIDATION_NAME)
    return list_losses(path, read_json_lines(path))


def list_losses(path: str, lines: Sequence[Any], split: str | None = None) -> dict[int, float]:
    """Returns the loss in nats per token of each step, given the lines of `validation.jsonl`.

    Only evaluations on `split` count; `None` means the split of the last line.
    """
    kinds = (KeyError, TypeError, ValueError)
    with explain_errors(f"`{path}` does not hold evaluations of a run", *kinds):
        wanted = split or (lines[-1]["split"] if lines else None)
        own = [line for line in lines if line["split"] == wanted]
        return {line["step"]: float(line["loss_nats"]) for line in own}
