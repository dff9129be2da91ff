"""Weight-only quantization: a model whose kernels are stored in bfloat16 or int8."""

import functools
from collections.abc import Callable

import tensorflow as tf

from txl_tf.config import KERNEL_DTYPES
from txl_tf.errors import UserError
from txl_tf.layers.packed_kernel import PackedPolicy
from txl_tf.model import SegmentModel, TransformerXL


def quantize(model: SegmentModel, dtype: str) -> TransformerXL:
    """Returns a model with the kernels and tables of another one in fewer bits, for inference.

    Biases, norms and small projections stay in float32. So do activations, keys and values with
    "int8". With "bfloat16", segments are computed in bfloat16 too, as in training with that
    precision.

    Args:
        model: A model with float32 weights, which stays as it is.
        dtype: "int8", with a scale for each output (symmetric, rounded to nearest); or "bfloat16".

    Returns:
        A model that cannot be trained.

    Raises:
        UserError: If there is no such dtype, or the model is quantized already.
    """
    if dtype not in KERNEL_DTYPES[1:]:
        rule = " or ".join(map(repr, KERNEL_DTYPES[1:]))
        raise UserError(f"`dtype` must be {rule}. Received: {dtype!r}")
    if get_kernel_dtype(model) != "float32":
        raise UserError(f"the model is quantized already, to {get_kernel_dtype(model)}")
    return pack_kernels(
        model, "mixed_bfloat16" if dtype == "bfloat16" else model.dtype_policy.name, dtype
    )


def pack_kernels(model: SegmentModel, policy: str, dtype: str) -> TransformerXL:
    """Returns a copy of a model whose kernels are stored by rows in a dtype, as `PackedKernel`."""
    packed = TransformerXL(model.config, seed=model.seed, dtype=PackedPolicy(policy, dtype))
    for kernel, weight in zip(packed.kernels, model.kernels, strict=True):
        kernel.assign(weight)
    others = {weight.path: weight for weight in model.weights}
    for weight in packed.weights:
        if weight.path in others:
            weight.assign(others[weight.path])
    return packed


def get_kernel_dtype(model: SegmentModel) -> str:
    """Returns the dtype of the kernels of a model, one of `KERNEL_DTYPES`."""
    return getattr(model.dtype_policy, "packed_dtype", "float32")


def make_row_product(guard: tf.Tensor) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns a product of a few inputs with narrow rows, for a loop that XLA compiles.

    XLA for CPU multiplies a vector with a narrow matrix fast, but it would convert all kernels to
    wide ones before a loop, as nothing in the loop changes them. So they must depend on the loop.

    Args:
        guard: () bool, true, but unknown to the compiler before the loop.

    Returns:
        A function of inputs (n, K), which it rounds to bfloat16, and rows (L, K) of bfloat16 or
        int8, which returns their product, (n, L) float32.
    """
    return functools.partial(_multiply_rows, guard=guard)


def _multiply_rows(inputs: tf.Tensor, rows: tf.Tensor, *, guard: tf.Tensor) -> tf.Tensor:
    rows = tf.convert_to_tensor(rows)
    # As integers: XLA widens bfloat16 before it looks at the guard.
    bits = rows if rows.dtype == tf.int8 else tf.bitcast(rows, tf.int16)
    rows = tf.bitcast(tf.where(guard, bits, tf.zeros((), bits.dtype)), rows.dtype)
    vectors = tf.unstack(tf.cast(inputs, tf.bfloat16)[:, None])
    products = [
        tf.matmul(vector, rows, transpose_b=True, output_type=tf.float32) for vector in vectors
    ]
    return tf.concat(products, axis=0)
