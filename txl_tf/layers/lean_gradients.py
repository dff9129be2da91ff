"""Steps of a layer whose gradients are written by hand, so that less is kept between the passes.

Gradients that are derived operation by operation keep what goes into dropout and what comes out. Of
these two, one and a sign tell both: the largest tensors of a layer are kept once. All tensors come
in by arguments, since `keras.remat` on JAX lets none in otherwise.
"""

from keras import ops

from txl_tf.layers.custom_gradient import custom_gradient


def rectify(inputs, keep=None, rate=0.0):
    """Returns the rectifier of some inputs, and its dropout.

    Where the gradient flows, what comes out is above 0: nothing else is kept.

    Args:
        inputs: of any shape and dtype.
        keep: bool of that shape, which entries are not dropped; `None`: all are kept.
        rate: the share that is dropped.

    Returns:
        As `inputs`: `relu(inputs) / (1 - rate)` where kept, else 0.

    >>> ops.convert_to_numpy(rectify(ops.convert_to_tensor([-1.0, 2.0]))).tolist()
    [0.0, 2.0]
    """

    @custom_gradient
    def compute(inputs, keep):
        passes = ops.logical_and(keep, inputs > 0)
        # XLA makes what is cheap again for each of its users, here from inputs that would have to
        # be kept for that. It does not so with a division by what only the run can tell.
        share = 1 - rate + make_late_zero(inputs)
        outputs = divide(ops.where(passes, inputs, 0), share)

        def compute_gradient(upstream):
            return ops.where(outputs > 0, divide(upstream, 1 - rate), 0), None

        return outputs, compute_gradient

    def divide(tensor, share):
        return ops.cast(ops.cast(tensor, "float32") / share, tensor.dtype)

    return compute(inputs, inputs > 0 if keep is None else keep)


def attend_with_dropout(scores, values, keep, rate):
    """Returns values weighted by the softmax of scores, of which dropout leaves a share.

    The weights are kept for the backward pass, negative where they are dropped.

    Args:
        scores: (B, N, T, S) float32.
        values: (B, S, N, H).
        keep: (B, N, T, S) bool, which weights count.
        rate: the share that is dropped.

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
            # Without the zero the same would be computed in the forward pass, and kept.
            late = signed + make_late_zero(upstream)
            dropped = ops.cast(ops.maximum(late, 0), values.dtype) * scale
            d_values = ops.einsum("bnts,btnh->bsnh", dropped, upstream)
            d_dropped = ops.einsum("btnh,bsnh->bnts", upstream, values) * scale
            d_weights = ops.where(signed >= 0, ops.cast(d_dropped, signed.dtype), 0)
            weights = ops.abs(signed)
            mean = ops.sum(weights * d_weights, axis=-1, keepdims=True)
            return weights * (d_weights - mean), d_values, None

        return ops.einsum("bnts,bsnh->btnh", dropped, values), compute_gradients

    return compute(scores, values, keep)


def make_late_zero(tensor):
    """Returns a zero, () float32, that no compiler knows before a tensor is computed.

    It is not a number if the tensor's first entry is none.
    """
    return ops.cast(ops.minimum(ops.abs(ops.reshape(tensor, (-1,))[0]), 0), "float32")
