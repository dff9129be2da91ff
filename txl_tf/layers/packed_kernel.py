"""Weight-only quantization: kernels stored in bfloat16 or int8.

Generation reads every kernel for each token, so it is limited by memory bandwidth: narrower kernels
take less time, and less space in memory and on disk. Activations keep their dtype. The weights of
the model must not change.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from txl_tf.layers.fused.matrix_products import multiply

_LARGEST = 127  # of int8, without -128, so that both signs have the same range


@keras.saving.register_keras_serializable(package="txl_tf")
class PackedPolicy(keras.DTypePolicy):
    """A dtype policy for layers whose kernels are packed.

    Args:
        name: The policy of everything else, such as "float32" or "mixed_bfloat16".
        packed_dtype: The dtype of the kernels, "bfloat16" or "int8".
    """

    def __init__(self, name: str, packed_dtype: str):
        super().__init__(name)
        self.packed_dtype = packed_dtype

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"packed_dtype": self.packed_dtype}


class PackedKernel:
    """A matrix whose rows are stored in bfloat16, or in int8 with a scale for each row.

    It replaces a kernel (K, L), stored with a row for each of the L outputs, or a table (n, E),
    stored as it is: its rows are the outputs of a product with tied weights. It converts to a
    float32 tensor of that shape wherever TensorFlow expects a tensor. Products call `multiply`,
    unless their caller passes another `Multiply`.

    Args:
        rows: The stored matrix, a variable or tensor of bfloat16 or int8.
        scales: (L, 1) or (n, 1) float32, by which the rows are multiplied; `None` for bfloat16.
        is_table: Whether the matrix has the shape of `rows`; otherwise it is transposed.
    """

    def __init__(self, rows: Any, scales: Any, *, is_table: bool):
        self.rows = rows
        self.scales = scales
        self.is_table = is_table

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix."""
        shape = tuple(self.rows.shape)
        return shape if self.is_table else shape[::-1]

    def assign(self, matrix: Any) -> None:
        """Stores a matrix of floats."""
        rows = ops.cast(matrix, "float32")
        rows = rows if self.is_table else ops.transpose(rows)
        if self.scales is not None:
            rows, scales = quantize_rows(rows)
            self.scales.assign(scales)
        self.rows.assign(ops.cast(rows, self.rows.dtype))

    def restore(self, dtype: str = "float32") -> Any:
        """Returns the rows as floats."""
        if self.scales is None:
            return ops.cast(self.rows, dtype)
        return ops.cast(ops.cast(self.rows, "float32") * self.scales, dtype)

    def take(self, indices: Any, dtype: str) -> Any:
        """Returns rows (..., E) of a table."""
        rows = ops.take(self.rows, indices, axis=0)
        scales = None if self.scales is None else ops.take(self.scales, indices, axis=0)
        return PackedKernel(rows, scales, is_table=True).restore(dtype)

    def multiply(self, inputs: Any) -> Any:
        """Returns the product of `inputs` (..., K) with the restored rows (L, K), (..., L)."""
        rows = self.restore(inputs.dtype)
        return _multiply_flat(inputs, lambda flat: multiply(flat, rows, transpose_right=True))

    def multiply_stored(self, inputs: Any, product: Callable[[Any, Any], Any]) -> Any:
        """Returns the same product, (..., L), computed from the stored rows and then scaled.

        Args:
            inputs: (..., K).
            product: Returns the product of inputs (n, K) and stored rows (L, K), (n, L) float32.
        """

        def multiply_scaled(flat: Any) -> Any:
            outputs = product(flat, self.rows)
            if self.scales is not None:
                outputs *= ops.reshape(self.scales, (-1,))
            return ops.cast(outputs, inputs.dtype)

        return _multiply_flat(inputs, multiply_scaled)

    def __getitem__(self, part: slice) -> "PackedKernel":
        """Returns some of the rows of a table."""
        scales = None if self.scales is None else self.scales[part]
        return PackedKernel(ops.convert_to_tensor(self.rows)[part], scales, is_table=True)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        rows = self.restore()
        matrix = rows if self.is_table else ops.transpose(rows)
        return matrix if dtype is None else ops.cast(matrix, dtype)


# Computes a product with a packed kernel: from the kernel and inputs (..., K) to (..., L).
Multiply = Callable[[PackedKernel, Any], Any]


def _multiply_flat(inputs: Any, compute: Callable[[Any], Any]) -> Any:
    """Applies `compute`, a function of inputs (n, K), to inputs (..., K)."""
    *batch, width = ops.shape(inputs)
    outputs = compute(ops.reshape(inputs, (-1, width)))
    return ops.reshape(outputs, (*batch, outputs.shape[-1]))


def quantize_rows(rows: Any) -> tuple[Any, Any]:
    """Returns rows (..., L, K) of floats in int8, and their scales, (..., L, 1).

    The scale of a row is its largest magnitude divided by 127. Values are rounded to nearest.
    """
    scales = ops.max(ops.abs(rows), axis=-1, keepdims=True) / _LARGEST
    scales = ops.where(scales > 0, scales, 1.0)
    return ops.cast(ops.round(rows / scales), "int8"), scales


def add_kernel(
    layer: keras.layers.Layer,
    name: str,
    shape: Sequence[int],
    initializer: Any,
    *,
    is_table: bool = False,
    **options: Any,
) -> Any:
    """Adds a kernel to a layer: a weight, or a `PackedKernel` if its policy is a `PackedPolicy`.

    Args:
        layer: The layer.
        name: The name of the kernel.
        shape: (K, L) for a kernel, (n, E) for a table.
        initializer: The initializer; a packed kernel starts at 0.
        is_table: Whether the matrix is a table.
        **options: Further arguments of `add_weight` if the kernel is not packed.
    """
    packed_dtype = getattr(layer.dtype_policy, "packed_dtype", None)
    if packed_dtype is None:
        return layer.add_weight(name=name, shape=shape, initializer=initializer, **options)
    n_rows, width = shape if is_table else shape[::-1]

    def add(part: str, shape: Sequence[int], dtype: str) -> Any:
        return layer.add_weight(
            name=f"{name}_{part}",
            shape=shape,
            dtype=dtype,
            initializer="zeros",
            trainable=False,
            autocast=False,
        )

    scales = add("scales", (n_rows, 1), "float32") if packed_dtype == "int8" else None
    return PackedKernel(add("rows", (n_rows, width), packed_dtype), scales, is_table=is_table)


def take_rows(table: Any, indices: Any, dtype: str) -> Any:
    """Returns rows (..., E) of a table (n, E), a weight or a `PackedKernel`.

    In the 2019 code: `embedding_lookup`.
    """
    if isinstance(table, PackedKernel):
        return table.take(indices, dtype)
    return ops.cast(ops.take(table, indices, axis=0), dtype)


def restore_kernels(kernels: Sequence[Any], dtype: str) -> Multiply:
    """Returns a `Multiply` with kernels that are restored once, here, for use in a loop.

    Args:
        kernels: The kernels; those that are not packed are ignored.
        dtype: The dtype of the restored kernels.
    """
    restored = {
        id(kernel): PackedKernel(kernel.restore(dtype), None, is_table=kernel.is_table)
        for kernel in kernels
        if isinstance(kernel, PackedKernel)
    }

    def multiply(kernel: PackedKernel, inputs: Any) -> Any:
        return restored.get(id(kernel), kernel).multiply(inputs)  # others are parts of a table

    return multiply
