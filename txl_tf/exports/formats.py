"""The formats of `LanguageModel.export`: a new one is a file of this folder and an entry here."""

from collections.abc import Callable
from typing import Any, NamedTuple

from txl_tf.config import KERNEL_DTYPES
from txl_tf.errors import require_extra


def _write_saved_model(*model: Any, precision: str, **settings: Any) -> tuple[str, ...]:
    from txl_tf.exports.saved_model_export import export_saved_model

    return export_saved_model(*model, **settings)  # in the precision that the model has


def _write_litert(*model: Any, **settings: Any) -> tuple[str, ...]:
    from txl_tf.exports.step_export import export_step, make_litert

    return export_step(*model, make_file=make_litert, file_format="litert", **settings)


def _write_onnx(*model: Any, **settings: Any) -> tuple[str, ...]:
    from txl_tf.exports.step_export import export_step

    with require_extra("onnx", "format=onnx"):
        from txl_tf.exports.onnx_graph import make_onnx

    return export_step(*model, make_file=make_onnx, file_format="onnx", **settings)


class ExportFormat(NamedTuple):
    """A format of an export, with the defaults of its settings.

    `write` takes the folder, the `CachedModel`, the vocabulary or `None`, and the keywords
    `precision`, `batch_size` and `origin`, further facts to store. It writes the folder, completely
    or not at all, and returns the names of its parts.
    """

    text: str  # what is written
    write: Callable[..., tuple[str, ...]]
    precisions: tuple[str, ...] = ("float32", "float16", "int8")  # of kernels and tables
    rounds_weights: bool = True  # to the precision; if not, they are written as they are
    batch_size: int = 1  # the number of texts to read at once
    tgt_len: int | None = 1  # the segment length; `None` for that of the evaluation config


FORMATS = {
    "saved_model": ExportFormat(
        "a SavedModel",
        _write_saved_model,
        precisions=KERNEL_DTYPES,
        rounds_weights=False,
        batch_size=8,
        tgt_len=None,
    ),
    "litert": ExportFormat("a LiteRT model", _write_litert),
    "onnx": ExportFormat("an ONNX model", _write_onnx),
}
