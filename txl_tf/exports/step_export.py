"""Exports a model as a LiteRT or ONNX file, with all that a program in any language needs."""

import os
from collections.abc import Callable
from typing import Any

from txl_tf.cached_model import CachedModel
from txl_tf.config import STEP_FORMATS, STEP_PRECISIONS
from txl_tf.data.files import write_json
from txl_tf.data.temporary_folders import check_new_folder, write_aside
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError, require_extra
from txl_tf.exports.exporting import describe_model
from txl_tf.exports.stateless_step import StatelessStep, StepInputs, StepOutputs
from txl_tf.exports.step_weights import count_entries
from txl_tf.quantization import get_kernel_dtype

_INFO_NAME, _VOCABULARY_NAME = "model.json", "vocabulary.json"
_MODEL_NAMES = {"litert": "model.tflite", "onnx": "model.onnx"}
_ENTRY_SIZES = {"float32": 4, "float16": 2, "int8": 1}  # in bytes
_MAX_BYTES = 2**31  # both formats hold less


def export_step(
    out: str,
    cached: CachedModel,
    vocabulary: Vocabulary | None,
    *,
    file_format: str,
    precision: str = "float32",
    batch_size: int = 1,
    origin: dict[str, Any] | None = None,
) -> tuple[str, ...]:
    """Writes the stateless step of a model, completely or not at all; see docs/off-python.md.

    Args:
        out: The folder, which must be new or empty.
        cached: The model; its `tgt_len` is the number of tokens of a step.
        vocabulary: The vocabulary; `None` for none.
        file_format: "litert" or "onnx".
        precision: The dtype in which matrices are stored: "float32", "float16" or "int8".
        batch_size: Number of rows.
        origin: Further facts about the model to store, as JSON.

    Returns:
        The names of the files.

    Raises:
        UserError: If an argument is out of its range, the model has no memory or is quantized, the
            file would be too large, the package that writes it is not installed, or the folder is
            not empty or cannot be written.
    """
    check_step(cached, file_format=file_format, precision=precision, batch_size=batch_size)
    make = _find_maker(file_format)
    check_new_folder(out)
    step = StatelessStep(cached, batch_size)
    _check_size(step, file_format, precision)
    content = make(step, precision)
    info = {
        **describe_model(cached, vocabulary, origin),
        "temperature": cached.temperature,
        "format": file_format,
        "precision": precision,
        "batch_size": batch_size,
        "inputs": dict(zip(StepInputs._fields, map(list, step.inputs), strict=True)),
        "outputs": dict(zip(StepOutputs._fields, map(list, step.outputs), strict=True)),
    }
    names = [_MODEL_NAMES[file_format], _INFO_NAME]
    with write_aside(out) as aside:
        with open(os.path.join(aside, names[0]), "wb") as file:
            file.write(content)
        write_json(os.path.join(aside, _INFO_NAME), info)
        if vocabulary is not None:
            names.append(_VOCABULARY_NAME)
            write_json(os.path.join(aside, _VOCABULARY_NAME), vocabulary.to_json())
    return tuple(names)


def check_step(cached: CachedModel, *, file_format: str, precision: str, batch_size: int) -> None:
    """Checks that a model can be exported as a step; the arguments are those of `export_step`.

    Raises:
        UserError: If it cannot.
    """
    config, mem_len = cached.model.config, cached.span.mem_len
    if file_format not in STEP_FORMATS:
        raise UserError(f"`format` must be one of {STEP_FORMATS}. Received: {file_format!r}")
    if precision not in STEP_PRECISIONS:
        raise UserError(
            f"`precision` must be one of {STEP_PRECISIONS} with format={file_format}. "
            f"Received: {precision!r}"
        )
    if batch_size < 1:
        raise UserError(f"`batch_size` must be positive. Received: batch_size={batch_size}")
    config.check_memory(f"format={file_format}")
    if not mem_len:
        raise UserError(
            f"`mem_len` must be positive with format={file_format}, whose steps know the text "
            f"before them by the memory alone. Received: mem_len={mem_len}"
        )
    if (kernel_dtype := get_kernel_dtype(cached.model)) != "float32":
        raise UserError(
            f"format={file_format} rounds float32 weights by itself: load the run without "
            f"`precision`. Received: a model quantized to {kernel_dtype}"
        )


def _find_maker(file_format: str) -> Callable[[StatelessStep, str], bytes]:
    """Returns the function that makes a file of a format."""
    if file_format == "litert":
        from txl_tf.exports.litert import make_litert

        return make_litert
    with require_extra("onnx", "format=onnx"):
        from txl_tf.exports.onnx_graph import make_onnx
    return make_onnx


def _check_size(step: StatelessStep, file_format: str, precision: str) -> None:
    n_bytes = count_entries(step.weights) * _ENTRY_SIZES[precision]
    if n_bytes >= _MAX_BYTES:
        raise UserError(
            f"a file with format={file_format} holds less than 2 GiB: choose a narrower "
            f"`precision`. Received: precision={precision}, in which the weights and the products "
            f"of the positions take {n_bytes / 2**30:.1f} GiB"
        )
