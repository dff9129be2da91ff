"""The weights of a model in one file, `model.safetensors`, which holds nothing but numbers."""

import os
from typing import Any

import numpy as np

from txl_tf.config.base import list_differences
from txl_tf.errors import UserError, explain, require_extra
from txl_tf.model import SegmentModel
from txl_tf.runs.checkpoint_reader import name_variables

WEIGHTS_NAME = "model.safetensors"
_FORMAT = "txl_tf"  # under the key `format`, by which readers of other libraries know their files


def save_weights_file(folder: str, model: SegmentModel, *, step: int) -> None:
    """Writes the weights of a model, by the names that they have in a checkpoint.

    Args:
        folder: The folder of the file.
        model: The model.
        step: The number of training steps behind the weights, which the file names.

    Raises:
        UserError: If the package safetensors is missing.
    """
    arrays = {name: x.numpy() for name, x in name_variables(model.weights).items()}
    metadata = {"format": _FORMAT, "step": str(step)}
    _import_safetensors().save_file(arrays, os.path.join(folder, WEIGHTS_NAME), metadata)


def load_weights_file(folder: str, model: SegmentModel) -> int:
    """Restores the weights of a model, and returns the number of training steps behind them.

    Raises:
        UserError: If the package safetensors is missing, the file cannot be read, or it holds the
            weights of another model.
    """
    path = os.path.join(folder, WEIGHTS_NAME)
    arrays, metadata = _read(path)
    if metadata.get("format") != _FORMAT:
        raise UserError(
            f"`{path}` was not written by txl_tf. The weights of other libraries are imported: "
            f"python -m txl_tf.import_release --source {folder} --out RUN"
        )
    variables = name_variables(model.weights)
    found = {name: list(array.shape) for name, array in arrays.items()}
    differences = list_differences(found, {name: list(x.shape) for name, x in variables.items()})
    if differences:
        more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise UserError(
            f"`{path}` holds the weights of another model: {'; '.join(differences[:3])}{more}"
        )
    for name, variable in variables.items():
        variable.assign(arrays[name])
    return int(metadata.get("step", 0))


def _read(path: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns the arrays of a file by name, and what it says of itself.

    Raises:
        UserError: If it cannot be read.
    """
    _import_safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118  it is no dict
    except (SafetensorError, OSError) as error:
        raise UserError(f"`{path}` cannot be read: {explain(error)}") from error


def _import_safetensors() -> Any:
    with require_extra("hub", WEIGHTS_NAME):
        import safetensors.numpy
    return safetensors.numpy
