"""The element-wise operations between dense layers, with hand-written gradients.

Each operation is one chain in the forward pass and one in the backward pass, which recomputes the
dropout masks. All tensors are arguments: `keras.remat` on JAX does not allow closures over tensors.
"""

from keras import ops

from txl_tf.layers.custom_gradient import as_tensor, custom_gradient
from txl_tf.layers.dropout import drop_entries
from txl_tf.layers.fused.fusion import chain


def rectify(inputs, bias, seed=None, *, rate=0.0, is_locked=False):
    """Returns `relu(inputs + bias)` with dropout.

    The gradient is nonzero exactly where the output is positive, so only the output is kept.

    Args:
        inputs: (..., I), of any floating dtype.
        bias: (I,).
        seed: (2,) integers, the seed of the mask; `None` without dropout.
        rate: Dropout rate.
        is_locked: Whether all positions have the same mask.

    Returns:
        A tensor of the shape and dtype of `inputs`.
    """

    @custom_gradient
    def compute(inputs, bias, *seed):
        outputs = _rectify(inputs, bias, *(seed or [None]), rate=rate, is_locked=is_locked)

        def compute_gradients(upstream):
            gradients = _rectify_backward(outputs, upstream, rate=rate)
            return *gradients, *[None for _ in seed]

        return outputs, compute_gradients

    return compute(inputs, as_tensor(bias), *([] if seed is None else [seed]))


def add_and_normalize(
    hidden, change, bias, norm, seed=None, *, rate=0.0, is_locked=False, has_empty=False
):
    """Returns `LayerNorm(hidden + dropout(change + bias))`, a residual connection.

    A state of zeros is normalized to zeros, with a slope of 1 / sqrt(epsilon): the gradient of
    several norms in a row would overflow. With `has_empty`, such a state passes no gradient.

    Args:
        hidden: (..., D).
        change: (..., D) in the dtype of `hidden`.
        bias: (D,), or `None` for none.
        norm: The `keras.layers.LayerNormalization`, with gain and offset.
        seed: (2,) integers, the seed of the mask; `None` without dropout.
        rate: Dropout rate.
        is_locked: Whether all positions have the same mask.
        has_empty: Whether there may be states of zeros, such as those of dropped words.

    Returns:
        (..., D) in the dtype of `hidden`.
    """
    has_bias, has_seed = bias is not None, seed is not None
    rule = {"rate": rate, "is_locked": is_locked}

    @custom_gradient
    def compute(hidden, change, gain, offset, *optional):
        bias, seed = optional[0] if has_bias else None, optional[-1] if has_seed else None
        outputs, normalized, inverse = _add_and_normalize(
            *(hidden, change, gain, offset, bias, seed),
            **rule,
            epsilon=norm.epsilon,
            has_empty=has_empty,
        )

        def compute_gradients(upstream):
            *gradients, d_bias = _add_and_normalize_backward(
                upstream, normalized, inverse, gain, seed, **rule
            )
            return *gradients, *([d_bias] if has_bias else []), *([None] if has_seed else [])

        return outputs, compute_gradients

    optional = ([as_tensor(bias)] if has_bias else []) + ([seed] if has_seed else [])
    return compute(hidden, change, as_tensor(norm.gamma), as_tensor(norm.beta), *optional)


@chain
def _rectify(inputs, bias, seed, *, rate, is_locked):
    outputs = ops.relu(ops.cast(inputs, "float32") + ops.cast(bias, "float32"))
    return ops.cast(drop_entries(outputs, seed, rate, is_locked), inputs.dtype)


@chain
def _rectify_backward(outputs, upstream, *, rate):
    d_inputs = ops.where(outputs > 0, ops.cast(upstream, "float32") * (1 / (1 - rate)), 0)
    return ops.cast(d_inputs, outputs.dtype), _sum_rows(d_inputs)


@chain
def _add_and_normalize(
    hidden, change, gain, offset, bias, seed, *, rate, is_locked, epsilon, has_empty
):
    """Returns the output, the normalized states and their slope (..., 1), for the gradient."""
    change = ops.cast(change, "float32")
    if bias is not None:
        change += bias
    states = ops.cast(hidden, "float32") + drop_entries(change, seed, rate, is_locked)
    mean = ops.mean(states, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(states - mean), axis=-1, keepdims=True)
    inverse = ops.rsqrt(variance + epsilon)
    normalized = (states - mean) * inverse
    outputs = normalized * gain + offset
    if has_empty:
        inverse = ops.where(variance > 0, inverse, 0)
    return ops.cast(outputs, hidden.dtype), ops.cast(normalized, hidden.dtype), inverse


@chain
def _add_and_normalize_backward(upstream, normalized, inverse, gain, seed, *, rate, is_locked):
    """Returns the gradients of hidden, change, gain, offset and bias."""
    d_outputs, states = ops.cast(upstream, "float32"), ops.cast(normalized, "float32")
    d_states = d_outputs * gain
    mean = ops.mean(d_states, axis=-1, keepdims=True)
    slope = ops.mean(d_states * states, axis=-1, keepdims=True)
    d_hidden = inverse * (d_states - mean - states * slope)
    d_change = drop_entries(d_hidden, seed, rate, is_locked)
    return (
        ops.cast(d_hidden, normalized.dtype),
        ops.cast(d_change, normalized.dtype),
        _sum_rows(d_outputs * states),
        _sum_rows(d_outputs),
        _sum_rows(d_change),
    )


def _sum_rows(tensor):
    return ops.sum(tensor, axis=tuple(range(len(tensor.shape) - 1)))
