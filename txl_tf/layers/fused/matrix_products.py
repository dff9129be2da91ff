"""Batched matrix products, which an engine may compute."""

from keras import ops

from txl_tf.layers.fused.fusion import get_engine


def multiply(left, right, *, transpose_left=False, transpose_right=False):
    """Returns the product of two batches of matrices.

    Args:
        left: (..., K, L), or (..., L, K) to transpose.
        right: (..., L, P), or (..., P, L) to transpose; the same batch axes and dtype.
        transpose_left: Whether to transpose the matrices of `left`.
        transpose_right: Whether to transpose the matrices of `right`.

    Returns:
        (..., K, P).
    """
    if compute := get_engine().multiply:
        return compute(left, right, transpose_left, transpose_right)
    left, right = (
        ops.swapaxes(matrices, -1, -2) if transposes else matrices
        for matrices, transposes in ((left, transpose_left), (right, transpose_right))
    )
    return ops.matmul(left, right)


def multiply_rounded(left, right, dtype, **transposes):
    """Returns the product, as float32, of two matrices that are first rounded to a dtype.

    Args:
        left: (K, L), or (L, K) to transpose.
        right: (L, P), or (P, L) to transpose.
        dtype: The dtype of the factors.
        **transposes: `transpose_left` and `transpose_right`, as in `multiply`.

    Returns:
        (K, P) float32.
    """
    product = multiply(ops.cast(left, dtype), ops.cast(right, dtype), **transposes)
    return ops.cast(product, "float32")
