"""The formats in which a model can be exported for use without txl_tf."""

from typing import NamedTuple

from txl_tf.config import KERNEL_DTYPES

_STEP_DTYPES = ("float32", "float16", "int8")


class Format(NamedTuple):
    """A format, whose function takes the model and the arguments of `LanguageModel.export`."""

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
