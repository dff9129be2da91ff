"""Weights of a model in a safetensors file, without TensorFlow."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import safetensors
import safetensors.numpy
from keras import ops

from txl_tf.config.base import list_differences
from txl_tf.data.files import access_path
from txl_tf.errors import UserError, explain_errors
from txl_tf.models.segment_model import SegmentModel

WEIGHTS_FORMAT = "txl_tf"  # under the key `format`, by which other libraries recognize files


@contextmanager
def open_weights(path: str) -> Iterator[Any]:
    """Opens a weights file; raises `UserError` if it cannot be read."""
    with (
        explain_errors(f"`{path}` cannot be read", safetensors.SafetensorError, OSError),
        safetensors.safe_open(path, framework="numpy") as file,
    ):
        yield file


def name_weights(model: SegmentModel) -> dict[str, keras.Variable]:
    """Returns the weights by their names in a file or checkpoint, whatever the model is called."""
    kind = model.config.model_type
    named = {f"{kind}.{path}".replace("/", "."): x for path, x in model.name_weights().items()}
    assert len(named) == len(model.weights), "paths of weights must be unique"
    return named


def read_weights_file(model: SegmentModel, path: str) -> None:
    """Restores the weights of a model from a safetensors file.

    Raises:
        UserError: If it cannot be read, or holds the weights of another model or library.
    """
    with open_weights(path) as file:
        if (file.metadata() or {}).get("format") != WEIGHTS_FORMAT:
            raise UserError(
                f"`{path}` was not written by txl_tf. The weights of other libraries are imported: "
                "txl import_release --source "
                f"{shlex.quote(os.path.dirname(path) or '.')} --out RUN"
            )
        arrays = {name: file.get_tensor(name) for name in list(file.keys())}
    variables = name_weights(model)
    found = {name: list(array.shape) for name, array in arrays.items()}
    differences = list_differences(found, {name: list(x.shape) for name, x in variables.items()})
    if differences:
        raise UserError(f"`{path}` holds the weights of another model: {join_some(differences)}")
    for name, variable in variables.items():
        variable.assign(arrays[name])


def write_weights_file(
    model: SegmentModel, path: str, *, step: int, dtype: str = "float32"
) -> None:
    """Writes the weights of a model as safetensors, in the NumPy dtype `dtype`.

    Raises:
        UserError: If the file cannot be written.
    """
    arrays = {
        name: ops.convert_to_numpy(variable).astype(dtype)
        for name, variable in name_weights(model).items()
    }
    metadata = {"format": WEIGHTS_FORMAT, "step": str(step)}
    with access_path(path):
        Path(path).write_bytes(safetensors.numpy.save(arrays, metadata))


def join_some(differences: list[str]) -> str:
    """Returns the first three differences, and the number of the others."""
    more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
    return "; ".join(differences[:3]) + more
