"""Operations with hand-written gradients that keep fewer activations for the backward pass.

Automatic differentiation keeps both the input and the output of dropout. Here the largest
activations of a layer are kept once, with the dropout mask in their sign. All tensors are
arguments: `keras.remat` on JAX does not allow closures over tensors.
"""

from keras import ops

from txl_tf.layers.attention_products import sum_over_queries
from txl_tf.layers.custom_gradient import custom_gradient


def rectify(inputs, keep=None, rate=0.0):
    """Returns ReLU with dropout of the inputs.

    The gradient is not zero exactly where the output is positive, so only the output is kept.

    Args:
        inputs: A tensor of any shape and floating dtype.
        keep: Bool of the same shape, true where an entry is kept; `None` keeps all.
        rate: Dropout rate of `keep`.

    Returns:
        `relu(inputs) / (1 - rate)` where kept, else 0, in the shape and dtype of `inputs`.

    >>> ops.convert_to_numpy(rectify(ops.convert_to_tensor([-1.0, 2.0]))).tolist()
    [0.0, 2.0]
    """

    @custom_gradient
    def compute(inputs, keep):
        passes = ops.logical_and(keep, inputs > 0)
        # XLA computes cheap values again for each of their users, here from inputs that it would
        # have to keep. It does not do so with a division by a value that is known only at run time.
        share = 1 - rate + make_late_zero(inputs)
        outputs = divide(ops.where(passes, inputs, 0), share)

        def compute_gradient(upstream):
            return ops.where(outputs > 0, divide(upstream, 1 - rate), 0), None

        return outputs, compute_gradient

    def divide(tensor, share):
        return ops.cast(ops.cast(tensor, "float32") / share, tensor.dtype)

    return compute(inputs, inputs > 0 if keep is None else keep)


def attend_with_dropout(scores, values, keep, rate):
    """Returns the values weighted by the softmax of the scores, with dropout on the weights.

    Only the weights are kept for the backward pass, with a minus sign where they are dropped.

    Args:
        scores: (B, N, T, S) float32.
        values: (B, S, N, H).
        keep: (B, N, T, S) bool, true where a weight is kept.
        rate: Dropout rate of `keep`.

    Returns:
        (B, T, N, H) in the dtype of `values`.
    """
    scale = 1 / (1 - rate)

    @custom_gradient
    def compute(scores, values, keep):
        weights = ops.softmax(scores, axis=-1)
        signed = ops.where(keep, weights, -weights)
        dropped = ops.where(keep, ops.cast(weights, values.dtype) * scale, 0)

        def compute_gradients(upstream):
            # Without the zero, XLA would compute this in the forward pass, and keep it.
            late = signed + make_late_zero(upstream)
            dropped = ops.cast(ops.maximum(late, 0), values.dtype) * scale
            d_values = sum_over_queries(upstream, dropped)
            d_dropped = ops.einsum("btnh,bsnh->bnts", upstream, values) * scale
            d_weights = ops.where(signed >= 0, ops.cast(d_dropped, signed.dtype), 0)
            weights = ops.abs(signed)
            mean = ops.sum(weights * d_weights, axis=-1, keepdims=True)
            return weights * (d_weights - mean), d_values, None

        return ops.einsum("bnts,bsnh->btnh", dropped, values), compute_gradients

    return compute(scores, values, keep)


def make_late_zero(tensor):
    """Returns a zero, () float32, that a compiler cannot know before the tensor is computed.

    It is NaN if the first entry of the tensor is NaN.
    """
    return ops.cast(ops.minimum(ops.abs(ops.reshape(tensor, (-1,))[0]), 0), "float32")
