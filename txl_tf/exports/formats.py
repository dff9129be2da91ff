"""The formats in which a model can be exported for use without txl_tf."""

import os
import pkgutil
from typing import Any, NamedTuple

from txl_tf.config import KERNEL_DTYPES
from txl_tf.errors import UserError

LanguageModel = Any  # `txl_tf.LanguageModel`, which imports this file

_STEP_DTYPES = ("float32", "float16", "int8")


class Format(NamedTuple):
    """A format, whose function takes the arguments of `export`."""

    place: str  # module and name of its function, which is imported when it is used
    text: str  # description for `--help`
    precisions: tuple[str, ...]  # of the kernels and tables
    batch_size: int  # the default
    tgt_len: int | None  # the default; `None` for that of the run
    is_quantized: bool = False  # by `LanguageModel.quantize`, before it is exported


_STEP = "txl_tf.apps.step_files:export_step"
FORMATS = {
    "saved_model": Format(
        "txl_tf.exports.saved_model_export:export_saved_model",
        *("a SavedModel", KERNEL_DTYPES, 8, None),
        is_quantized=True,
    ),
    "litert": Format(_STEP, "a LiteRT model", _STEP_DTYPES, 1, 1),
    "onnx": Format(_STEP, "an ONNX model", _STEP_DTYPES, 1, 1),
}


def export(
    lm: LanguageModel,
    folder: str | os.PathLike[str],
    *,
    format: str,  # noqa: A002  as the flag
    batch_size: int | None,
    tgt_len: int | None,
    **settings: Any,
) -> tuple[str, ...]:
    """Writes a model in a format; see `LanguageModel.export`."""
    if format not in FORMATS:
        raise UserError(f"`format` must be one of {tuple(FORMATS)}. Received: {format!r}")
    found = FORMATS[format]
    return pkgutil.resolve_name(found.place)(
        lm,
        folder,
        format=format,
        batch_size=found.batch_size if batch_size is None else batch_size,
        tgt_len=found.tgt_len if tgt_len is None else tgt_len,
        **settings,
    )
