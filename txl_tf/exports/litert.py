"""The stateless step as a LiteRT file (`.tflite`), for phones and small devices."""

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from txl_tf.exports.stateless_step import StatelessStep, StepInputs
from txl_tf.exports.step_operations import MIN_INT8_SIZE, Matrix, Norm
from txl_tf.layers.packed_kernel import quantize_rows

SIGNATURE = "step"


def make_litert(step: StatelessStep, precision: str) -> bytes:
    """Returns the content of a LiteRT file, whose only signature is "step".

    With "int8" LiteRT rounds the inputs of each product to 8 bits, too, with a scale for each row.

    Args:
        step: The step.
        precision: The dtype in which matrices are stored: "float32", "float16" or "int8".
    """
    dtypes = StepInputs(tf.int32, tf.float32, tf.float32, tf.int32)
    specs = [
        tf.TensorSpec(shape, dtype, name)
        for name, shape, dtype in zip(StepInputs._fields, step.inputs, dtypes, strict=True)
    ]
    module, operations = tf.Module(), TensorFlowOperations(precision)

    @tf.function(input_signature=specs, autograph=False)
    def run(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return step.build(operations, StepInputs(*inputs))._asdict()

    signatures = {SIGNATURE: run.get_concrete_function()}
    module.matrices = operations.matrices
    with tempfile.TemporaryDirectory() as folder:  # a file made of a function has no signature
        tf.saved_model.save(module, folder, signatures=signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=[SIGNATURE])
        if precision != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        return converter.convert()


class TensorFlowOperations:
    """The operations of a step, in TensorFlow; see `Operations`.

    Args:
        precision: The dtype in which matrices will be stored.

    Attributes:
        matrices: The matrices by name. They are variables until the file is made: TensorFlow
            copies a graph with large constants many times.
    """

    def __init__(self, precision: str):
        self.precision = precision
        self.matrices: dict[str, tf.Variable] = {}

    def _store(self, name: str, make_value: Callable[[], Any]) -> tf.Variable:
        """Returns the variable of a name; its value is made once, outside of the graph."""
        if name not in self.matrices:
            with tf.init_scope():
                self.matrices[name] = tf.Variable(make_value(), trainable=False)
        return self.matrices[name]

    def _store_rows(self, matrix: Matrix) -> tf.Variable:
        """Returns the rows in float32; those that the converter rounds to int8 are rounded.

        So it finds the integers of `quantize_rows`, and stores a table that is both taken from and
        multiplied with only once.
        """
        if not self._is_packed(matrix) or matrix.rows.ndim > 2:
            return self._store(matrix.name, lambda: matrix.rows)

        def round_rows() -> tf.Tensor:
            rows, scales = quantize_rows(matrix.rows)
            return tf.cast(rows, tf.float32) * scales

        return self._store(matrix.name, round_rows)

    def _is_packed(self, matrix: Matrix) -> bool:
        return self.precision == "int8" and matrix.rows.size >= MIN_INT8_SIZE

    def constant(self, value: ArrayLike) -> tf.Tensor:
        return tf.constant(value)

    def multiply_rows(self, inputs: tf.Tensor, matrix: Matrix) -> tf.Tensor:
        return tf.matmul(inputs, self._store_rows(matrix), transpose_b=True)

    def take_rows(self, matrix: Matrix, indices: tf.Tensor) -> tf.Tensor:
        if not self._is_packed(matrix):
            return tf.gather(self._store_rows(matrix), indices)
        # The converter would round the table with one scale for all rows.
        rows = self._store(f"{matrix.name}/int8", lambda: quantize_rows(matrix.rows)[0])
        scales = self._store(f"{matrix.name}/scales", lambda: quantize_rows(matrix.rows)[1])
        return tf.cast(tf.gather(rows, indices), tf.float32) * tf.gather(scales, indices)

    def take_columns(self, inputs: tf.Tensor, indices: np.ndarray) -> tf.Tensor:
        return tf.gather(inputs, indices, axis=-1)

    def matmul(self, left: tf.Tensor, right: tf.Tensor, *, transpose_right: bool = False) -> Any:
        return tf.matmul(left, right, transpose_b=transpose_right)

    def add(self, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        return left + right

    def multiply(self, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        return left * right

    def minimum(self, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        return tf.minimum(left, right)

    def maximum(self, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        return tf.maximum(left, right)

    def equal(self, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.equal(left, right), tf.float32)

    def to_float(self, integers: tf.Tensor) -> tf.Tensor:
        return tf.cast(integers, tf.float32)

    def softmax(self, scores: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(scores)

    def log_softmax(self, logits: tf.Tensor) -> tf.Tensor:
        return tf.nn.log_softmax(logits)

    def normalize(self, states: tf.Tensor, norm: Norm) -> tf.Tensor:
        centred = states - tf.reduce_mean(states, axis=-1, keepdims=True)
        variance = tf.reduce_mean(centred * centred, axis=-1, keepdims=True)
        return centred * tf.math.rsqrt(variance + norm.epsilon) * norm.gain + norm.offset

    def reshape(self, tensor: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
        return tf.reshape(tensor, shape)

    def transpose(self, tensor: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
        return tf.transpose(tensor, axes)

    def concat(self, tensors: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
        return tf.concat(tensors, axis)

    def slice(self, tensor: tf.Tensor, axis: int, start: int, stop: int) -> tf.Tensor:
        return tensor[(*[slice(None)] * axis, slice(start, stop))]
