"""Operations in a form that XLA compiles well; each docstring says what this saves.

They change results only by rounding. Everything would work without them, only slower or with more
memory.
"""

import math

from keras import ops

from txl_tf.layers.fused.fusion import get_engine
from txl_tf.layers.packed_kernel import PackedKernel

_MAX_PARTS = 4
_LOWEST = -3e38  # below every product; finite (not in float16), so that compilers keep the maximum
_MIN_SIZE = 2**18  # entries of a kernel; for smaller ones, synchronizing the threads costs more


def matmul_rows(rows, kernel, multiply=PackedKernel.multiply):
    """Returns `rows @ kernel`; for a single row, the sum over K is split into a batch of sums.

    XLA for CPU computes a product of a vector and a matrix on one thread if an addition follows,
    so it uses the memory bandwidth of one core. It gives batched products to all threads.

    Args:
        rows: (..., K).
        kernel: (K, L), a weight or tensor of any dtype, or a `PackedKernel`.
        multiply: How products with a `PackedKernel` are computed, a `Multiply`.

    Returns:
        (..., L) of the dtype of `rows`.
    """
    if isinstance(kernel, PackedKernel):
        return multiply(kernel, rows)
    kernel = ops.cast(kernel, rows.dtype)
    *batch, width = ops.shape(rows)
    n_columns = kernel.shape[-1]
    n_parts = math.gcd(kernel.shape[0], _MAX_PARTS)
    if not _is_single(rows) or n_parts == 1 or kernel.shape[0] * n_columns < _MIN_SIZE:
        products = ops.matmul(ops.reshape(rows, (-1, width)), kernel)
        return ops.reshape(products, (*batch, n_columns))
    rows = ops.reshape(rows, (n_parts, 1, width // n_parts))
    kernel = ops.reshape(kernel, (n_parts, width // n_parts, n_columns))
    return ops.reshape(ops.sum(ops.matmul(rows, kernel), axis=0), (*batch, n_columns))


def matmul_rows_transposed(rows, kernel, multiply=PackedKernel.multiply):
    """Returns `rows @ kernel^T`; for a single row, `kernel @ row^T`.

    Otherwise XLA for CPU first copies the kernel into another layout, 16 times the work.

    Args:
        rows: (..., K).
        kernel: (L, K), a weight or tensor of any dtype, or a `PackedKernel`.
        multiply: How products with a `PackedKernel` are computed, a `Multiply`.

    Returns:
        (..., L) of the dtype of `rows`.
    """
    if isinstance(kernel, PackedKernel):
        return multiply(kernel, rows)
    kernel = ops.cast(kernel, rows.dtype)
    if not _is_single(rows):
        return ops.matmul(rows, ops.transpose(kernel))
    *batch, width = rows.shape
    products = ops.matmul(kernel, ops.reshape(rows, (width, 1)))
    return keep_apart(ops.reshape(products, (*batch, kernel.shape[0])))


def keep_apart(products):
    """Returns products unchanged, by an operation that XLA does not fuse with them.

    XLA for CPU would fuse an addition that follows with a product of a vector and a matrix, and
    compute both on one thread.
    """
    return ops.maximum(products, _LOWEST)


def _is_single(rows):
    return all(size == 1 for size in rows.shape[:-1])


def delay(tensor, upstream):
    """Returns a tensor that XLA cannot use before the upstream gradient is known.

    Without this, XLA computes values of the backward pass in the forward pass and keeps them: in
    the attention of a layer, a second tensor of the size of the weights. An engine compiles the two
    passes separately and does not need this.
    """
    if get_engine().compile is not None:
        return tensor
    return tensor + ops.cast(make_late_zero(upstream), tensor.dtype)


def make_late_zero(tensor):
    """Returns a zero, () float32, that a compiler cannot know before the tensor is computed.

    It is NaN if the first entry of the tensor is NaN.
    """
    return ops.cast(ops.minimum(ops.abs(ops.reshape(tensor, (-1,))[0]), 0), "float32")
