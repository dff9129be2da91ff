"""Attention in kernels for TPUs, on either backend of Keras.

It computes what `attention.attend` defines. TensorFlow calls the kernels through `jax2tf`.
"""

import functools

import keras
from keras import ops

from txl_tf.layers.custom_gradient import custom_gradient
from txl_tf.layers.dropout import make_keys
from txl_tf.layers.fused import fused_attention
from txl_tf.layers.fused.fused_attention import join_heads, split_by_head
from txl_tf.layers.fused.fusion import Engine


def attend(
    segment,
    memory,
    distance_keys,
    content_bias,
    position_bias,
    mask,
    seed,
    *,
    rate,
    interpret=False,
):
    """Returns the values that each query attends to; see `attention.attend`.

    Every query must see consecutive keys, as with every `AttentionSpan`. Position encodings whose
    biases have another width than the heads are left to `fused_attention`. With `interpret`, the
    kernels run on any machine, slowly, for tests.
    """
    n_head, d_head = content_bias.shape
    arguments = (segment, memory, distance_keys, content_bias, position_bias, mask, seed)
    if position_bias.shape[1] != d_head:
        return fused_attention.attend(*arguments, rate=rate)
    from txl_tf.layers.fused import tpu_kernels

    tgt_len, mem_len = segment.shape[1], memory.shape[1]
    n_keys = mem_len + tgt_len
    settings = tpu_kernels.Settings(tgt_len, n_keys, rate if seed is not None else 0.0, interpret)
    more_queries, more_keys = tpu_kernels.find_padding(tgt_len, n_keys)
    by_head = functools.partial(_arrange, n_head=n_head)

    @custom_gradient
    def compute(segment, memory, distance_keys, content_bias, position_bias, bounds, keys):
        queries, *new = ops.split(segment, 3, axis=-1)
        old = ops.split(memory, 2, axis=-1)
        tensors = (
            by_head([queries], padding=more_queries),
            *(by_head(pair, padding=more_keys) for pair in zip(old, new, strict=True)),
            ops.pad(distance_keys, [(0, 0), (0, more_keys), (0, 0)]),
            ops.stack([content_bias, position_bias], axis=1),
            ops.pad(bounds, [(0, 0), (0, more_queries), (0, 0)]),
            keys,
        )
        attended = _call(tpu_kernels.attend, *tensors, settings=settings)

        def compute_gradients(upstream):
            upstream = by_head([upstream], padding=more_queries)
            gradients = _call(tpu_kernels.differentiate, *tensors, upstream, settings=settings)
            d_queries, d_keys, d_values, d_distances, d_biases = gradients
            d_queries = join_heads(d_queries[:, :, :tgt_len])
            d_keys, d_values = (join_heads(x[:, :, :n_keys]) for x in (d_keys, d_values))
            new = (d_queries, d_keys[:, mem_len:], d_values[:, mem_len:])
            return (
                ops.concatenate(new, axis=-1),
                ops.concatenate([d_keys[:, :mem_len], d_values[:, :mem_len]], axis=-1),
                d_distances[:, :n_keys],
                d_biases[:, 0],
                d_biases[:, 1],
                None,
                None,
            )

        return join_heads(attended[:, :, :tgt_len]), compute_gradients

    keys = ops.zeros(2, "uint32") if seed is None else ops.stack(make_keys(seed))
    distance_keys = ops.transpose(distance_keys, (1, 0, 2))
    biases = (content_bias, position_bias)
    return compute(segment, memory, distance_keys, *biases, _find_bounds(mask), keys)


TPU = Engine(attend=attend)


def _call(kernel, *tensors, settings):
    """Calls a function of JAX with the tensors of the backend."""
    if keras.backend.backend() == "jax":
        return kernel(*tensors, settings=settings)
    from jax.experimental import jax2tf

    return jax2tf.convert(
        functools.partial(kernel, settings=settings),
        with_gradient=False,
        native_serialization_platforms=("tpu",),
        # The program may be traced on another machine.
        native_serialization_disabled_checks=(jax2tf.DisabledSafetyCheck.platform(),),
    )(*tensors)


def _find_bounds(mask):
    """Returns the first key that a query sees, and the one after the last: (1 or B, T, 2) int32."""
    is_seen = ops.cast(mask[None] if len(mask.shape) == 2 else mask[:, 0], "int32")
    first = ops.cast(ops.argmax(is_seen, axis=-1), "int32")
    return ops.stack([first, first + ops.sum(is_seen, axis=-1)], axis=-1)


def _arrange(parts, *, n_head, padding):
    """Joins consecutive states, (B, n, N H) each, by head and with padding: (B, N, n, H)."""
    states = split_by_head(ops.concatenate(parts, axis=1), n_head)
    return ops.pad(states, [(0, 0), (0, 0), (0, padding), (0, 0)])
