"""Weight-only quantization: a model whose kernels are stored in bfloat16 or int8."""

import tensorflow as tf

from txl_tf.config import KERNEL_DTYPES
from txl_tf.errors import UserError
from txl_tf.layers.fused.for_xla import keep_apart
from txl_tf.layers.packed_kernel import PackedPolicy
from txl_tf.models.segment_model import SegmentModel
from txl_tf.models.transformer_xl import TransformerXL


def quantize(model: SegmentModel, dtype: str) -> TransformerXL:
    """Returns a copy of a model, which cannot be trained, with kernels and tables in fewer bits.

    Biases, norms and small projections stay in float32. "int8" has a scale for each output
    (symmetric, rounded to nearest), and activations, keys and values stay in float32. With
    "bfloat16", segments are computed in bfloat16 too, as in training with that precision.

    Raises:
        UserError: If `dtype` is unknown, or the model is already quantized.
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
    """Returns a copy of a model whose kernels are each a `PackedKernel` of a dtype."""
    packed = TransformerXL(
        model.config, seed=model.seed, name=model.name, dtype=PackedPolicy(policy, dtype)
    )
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


def multiply_rows(inputs: tf.Tensor, rows: tf.Tensor, *, guard: tf.Tensor) -> tf.Tensor:
    """Returns the product of inputs (n, K), rounded to bfloat16, with narrow rows, (n, L) float32.

    XLA for CPU multiplies a vector by a narrow matrix fast, but it would convert all kernels to
    float32 before a loop, because nothing in the loop changes them. To prevent this, they are made
    to depend on `guard`, () bool, which is true, but unknown to the compiler before the loop.
    """
    rows = tf.convert_to_tensor(rows)
    # As integers: XLA widens bfloat16 before it looks at the guard.
    bits = rows if rows.dtype == tf.int8 else tf.bitcast(rows, tf.int16)
    rows = tf.bitcast(tf.where(guard, bits, tf.zeros((), bits.dtype)), rows.dtype)
    vectors = tf.unstack(tf.cast(inputs, tf.bfloat16)[:, None])
    products = [
        tf.matmul(vector, rows, transpose_b=True, output_type=tf.float32) for vector in vectors
    ]
    return keep_apart(tf.concat(products, axis=0))
