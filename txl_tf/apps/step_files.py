"""Exports a model as a LiteRT or ONNX file, with everything a program in any language needs."""

import dataclasses
import math
import os
import tempfile

import keras
import tensorflow as tf

from txl_tf import LanguageModel
from txl_tf.data.files import access_path, write_json
from txl_tf.data.temporary_folders import check_new_folder, write_aside
from txl_tf.errors import UserError, check_integer, explain_errors, require_extra
from txl_tf.exports.description import describe_model
from txl_tf.layers.packed_kernel import PackedKernel
from txl_tf.models.architecture import check_transformer
from txl_tf.models.cached_model import CachedModel, CachedState, make_cached
from txl_tf.models.quantization import get_kernel_dtype, pack_kernels
from txl_tf.runs.checkpoint import name_variables

_INPUTS = ("ids", "keys", "values", "length")
_OUTPUTS = ("log_probabilities", "new_keys", "new_values", "new_length")


class TracedStep(tf.Module):
    """One step of a model: (ids, memory) -> (log-probabilities, memory).

    The kernels are stored by rows, as the formats require. With "int8", the rows hold the integers
    that `quantize` stores, and the scales multiply the products.

    Attributes:
        inputs: The shapes of the inputs by name, in order.
        outputs: The shapes of the outputs by name, in order.
        function: Takes the inputs, and returns the outputs by name.
    """

    def __init__(self, cached: CachedModel, batch_size: int, precision: str):
        super().__init__(name="step")
        config, mem_len = cached.model.config, cached.span.mem_len
        ids = (batch_size, cached.tgt_len)
        states = (config.n_layer, batch_size, config.n_head, mem_len, config.d_head)
        memory = (states, states, (batch_size,))
        self.inputs = dict(zip(_INPUTS, (ids, *memory), strict=True))
        log_probs = (*ids, config.n_token)
        self.outputs = dict(zip(_OUTPUTS, (log_probs, *memory), strict=True))
        self._cached = CachedModel(
            pack_kernels(cached.model, "float32", "int8" if precision == "int8" else "float32"),
            cached.span,
            cached.tgt_len,
            mask_empty_memory=cached.mask_empty_memory,
            temperature=cached.temperature,
        )
        self.weights = name_variables(self._cached.model)
        self.positions = self._cached.positions
        # Floats, which the converters store as the same integers: a cast within the graph would be
        # computed in every step.
        kernels = self._cached.model.kernels if precision == "int8" else []
        self.integers = {
            kernel.rows.path: tf.Variable(tf.cast(kernel.rows, tf.float32), trainable=False)
            for kernel in kernels
        }
        dtypes = (tf.int32, tf.float32, tf.float32, tf.int32)
        self.function = tf.function(
            self._run,
            input_signature=[
                tf.TensorSpec(shape, dtype, name)
                for (name, shape), dtype in zip(self.inputs.items(), dtypes, strict=True)
            ],
            autograph=False,
        )

    def _run(
        self, ids: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, length: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        cached = self._cached
        empty = cached.initial_state(ids.shape[0])
        state = CachedState(tuple(tf.unstack(keys)), tuple(tf.unstack(values)), empty.last, length)
        hidden, state = cached.read(ids, state, multiply=self._multiply)
        softmax, embedding = cached.model.softmax, cached.model.embedding
        log_probs = softmax.log_probs(hidden, embedding, multiply=self._multiply)
        if cached.temperature != 1:
            log_probs = tf.nn.log_softmax(log_probs / cached.temperature)
        memory = (tf.stack(state.keys), tf.stack(state.values), state.filled)
        return dict(zip(_OUTPUTS, (log_probs, *memory), strict=True))

    def _multiply(self, kernel: PackedKernel, inputs: tf.Tensor) -> tf.Tensor:
        return kernel.multiply_stored(inputs, self._multiply_rows)

    def _multiply_rows(self, inputs: tf.Tensor, rows: keras.Variable | tf.Tensor) -> tf.Tensor:
        """Returns the product of inputs (n, K) and rows (L, K) of a `PackedKernel`."""
        if isinstance(rows, keras.Variable):
            rows = self.integers.get(rows.path, rows)
        return tf.matmul(inputs, tf.cast(rows, tf.float32), transpose_b=True)


_INFO_NAME, _VOCABULARY_NAME = "model.json", "vocabulary.json"
_MODEL_NAMES = {"litert": "model.tflite", "onnx": "model.onnx"}
_ENTRY_SIZES = {"float32": 4, "float16": 2, "int8": 1}  # in bytes
_MAX_BYTES = 2**31  # both formats hold less


def export_step(
    lm: LanguageModel,
    folder: str | os.PathLike[str],
    *,
    format: str,  # noqa: A002  as the flag
    precision: str | None,
    batch_size: int,
    tgt_len: int,
    mask_empty_memory: bool,
) -> tuple[str, ...]:
    """Writes the model as one function in a file, completely or not at all.

    The function reads tokens and a memory, and returns the log-probabilities of the next tokens and
    the new memory; see docs/onnx-litert.md. It scores like `LanguageModel.score`, with the softmax
    temperature of the evaluation config.

    Args:
        lm: The model. It may not be quantized.
        folder: A folder on this machine, which must be new or empty.
        format: "litert" or "onnx"; "onnx" needs the extra `onnx`.
        precision: The dtype in which the file stores matrices: "float32", "float16" or "int8";
            `None` for float32.
        batch_size: Number of texts to read at once.
        tgt_len: Number of tokens to read at once.
        mask_empty_memory: Whether to mask memory entries that hold no token yet. The 2019 release
            attends to them as zeros.

    Returns:
        The names of the files in the folder.

    Raises:
        UserError: If an argument is out of range, the format cannot hold the model, or the folder
            is not empty or cannot be written. Nothing is left behind.
    """
    check_transformer(lm.config, "an export")
    precision = precision or "float32"
    if precision not in _ENTRY_SIZES:
        raise UserError(
            f"`precision` must be one of {tuple(_ENTRY_SIZES)} with format={format}. "
            f"Received: precision={precision!r}"
        )
    batch_size = check_integer("batch_size", batch_size, 1)
    if format == "onnx":
        with require_extra("onnx", "format=onnx"):
            from txl_tf.apps.onnx_graph import make_onnx
    evaluation = dataclasses.replace(lm.evaluation, tgt_len=tgt_len)
    cached = make_cached(lm.model, evaluation, mask_empty_memory=mask_empty_memory)
    _check_step(cached, format, precision)
    out = os.fspath(folder)
    check_new_folder(out)
    step = TracedStep(cached, batch_size, precision)
    if format == "onnx":
        content = make_onnx(step.function, list(step.outputs), precision)
    else:
        content = make_litert(step, precision)
    info = {
        **describe_model(lm, cached),
        "format": format,
        "precision": precision,
        "batch_size": batch_size,
        "inputs": step.inputs,
        "outputs": step.outputs,
    }
    names = [_MODEL_NAMES[format], _INFO_NAME]
    with access_path(out), write_aside(out) as aside:
        with open(os.path.join(aside, names[0]), "wb") as file:
            file.write(content)
        write_json(os.path.join(aside, _INFO_NAME), info)
        if lm.vocabulary is not None:
            names.append(_VOCABULARY_NAME)
            write_json(os.path.join(aside, _VOCABULARY_NAME), lm.vocabulary.to_json())
    return tuple(names)


def _check_step(cached: CachedModel, file_format: str, precision: str) -> None:
    model, mem_len, kernel_dtype = cached.model, cached.span.mem_len, get_kernel_dtype(cached.model)
    model.config.check_memory(f"format={file_format}")
    if not mem_len:
        raise UserError(
            f"`mem_len` must be positive with format={file_format}, whose steps know the text "
            f"before them by the memory alone. Received: mem_len={mem_len}"
        )
    if kernel_dtype != "float32":
        raise UserError(
            f"format={file_format} rounds float32 weights by itself: load the run without "
            f"`precision`. Received: a model quantized to {kernel_dtype}"
        )
    is_onnx = file_format == "onnx"
    # tf2onnx takes a graph whose constants are float32.
    entry_size = _ENTRY_SIZES["float32" if is_onnx else precision]
    n_bytes = entry_size * sum(math.prod(x.shape) for x in (*model.weights, *cached.positions))
    if n_bytes >= _MAX_BYTES:
        advice = "choose format=litert and" if is_onnx else "choose"
        raise UserError(
            f"format={file_format} holds less than 2 GiB: {advice} a narrower `precision`. "
            f"Received: precision={precision}, in which the weights and the products of the "
            f"positions take {n_bytes / 2**30:.1f} GiB"
        )


def make_litert(step: TracedStep, precision: str) -> bytes:
    """Returns the content of a LiteRT file, whose only signature is "step".

    With "int8", LiteRT also rounds the inputs of each product to 8 bits, with a scale per row.
    """
    signatures = {"step": step.function.get_concrete_function()}
    # The custom gradients are only for training.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with tempfile.TemporaryDirectory() as folder:  # a file made from a function has no signature
        with explain_errors(f"`{folder}` cannot be written", tf.errors.OpError, OSError):
            tf.saved_model.save(step, folder, signatures=signatures, options=options)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["step"])
        if precision != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        return converter.convert()
