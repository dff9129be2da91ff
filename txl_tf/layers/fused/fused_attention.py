"""Relative attention as matrix products and chains between them, with hand-written gradients.

It computes what `txl_tf.layers.attention` defines, faster and with fewer activations kept for the
backward pass. The heads come before the positions, as batched products expect them. The shift of
the position scores (paper, appendix B) needs no padding: see `arrange_distances`.
"""

from typing import Any, NamedTuple

from keras import ops

from txl_tf.layers.attention import MASKED_SCORE, shift_padded, split_heads
from txl_tf.layers.custom_gradient import custom_gradient
from txl_tf.layers.dropout import make_keep_mask
from txl_tf.layers.encodings import fit_width
from txl_tf.layers.fused.for_xla import delay
from txl_tf.layers.fused.fusion import chain
from txl_tf.layers.fused.matrix_products import multiply


class Heads(NamedTuple):
    """Queries, keys and values, by head.

    Args:
        content_queries: (B, N, T, H), (q + u) / sqrt(H).
        position_queries: (N, B T, W), (q + v) / sqrt(H); W is the width of v.
        keys: (B, N, S, H).
        values: (B, N, S, H).
    """

    content_queries: Any
    position_queries: Any
    keys: Any
    values: Any


def attend(segment_qkv, memory_kv, distance_keys, content_bias, position_bias, mask, seed, *, rate):
    """Returns the values that each query attends to; see `txl_tf.layers.attention.attend`."""
    has_dropout = seed is not None

    @custom_gradient
    def compute(segment_qkv, memory_kv, distance_keys, content_bias, position_bias, mask, *seed):
        heads = Heads(*arrange_heads(segment_qkv, memory_kv, content_bias, position_bias))
        weights = weigh(heads, distance_keys, mask, *seed, rate=rate)
        attended = sum_values(weights, heads.values, rate=rate, is_signed=has_dropout)

        def compute_gradients(upstream):
            late = delay(weights, upstream) if has_dropout else weights
            d_attended, slopes = _split_attended(upstream, attended, n_head=heads.keys.shape[1])
            dropped = _drop_negative(late, rate=rate) if has_dropout else weights
            d_values = multiply(d_attended, dropped, transpose_left=True)  # (B, N, H, S)
            d_dropped = multiply(d_attended, heads.values, transpose_right=True)
            d_content, d_position = _differentiate_weights(
                late, d_dropped, slopes, rate=rate if has_dropout else 0.0
            )
            # Keys come last: XLA for CPU is slow at the transposed products.
            d_heads = (
                multiply(d_content, heads.keys),
                multiply(d_position, distance_keys),
                multiply(heads.content_queries, d_content, transpose_left=True),
                d_values,
            )
            d_distance_keys = multiply(heads.position_queries, d_position, transpose_left=True)
            return (
                *_join_gradients(*d_heads, mem_len=memory_kv.shape[1]),
                ops.transpose(d_distance_keys, (0, 2, 1)),
                *_sum_queries(*d_heads[:2]),
                None,
                *(None for _ in seed),
            )

        return attended, compute_gradients

    distance_keys = arrange_distances(distance_keys)
    biases = (content_bias, position_bias)
    seeds = [seed] if has_dropout else []
    return compute(segment_qkv, memory_kv, distance_keys, *biases, mask, *seeds)


def arrange_distances(distance_keys):
    """Returns the products of the distances (S, N, W) by head, after a row of zeros: (N, 1 + S, W).

    With that row, the product with the queries has the column that `shift_padded` needs.
    """
    return ops.pad(ops.transpose(distance_keys, (1, 0, 2)), [(0, 0), (1, 0), (0, 0)])


def weigh(heads, distance_keys, mask, seed=None, *, rate=0.0):
    """Returns the attention weights, (B, N, T, S), negative where dropout drops them.

    Thanks to the sign, the backward pass needs no dropout mask in addition to the weights.
    """
    content = multiply(heads.content_queries, heads.keys, transpose_right=True)  # (B, N, T, S)
    position = multiply(heads.position_queries, distance_keys, transpose_right=True)
    return _weigh(content, position, mask, seed, rate=rate)


def sum_values(weights, values, *, rate=0.0, is_signed=False):
    """Returns the weighted sums of the values, (B, T, N H), of weights from `weigh`.

    Args:
        weights: (B, N, T, S).
        values: (B, N, S, H).
        rate: Dropout rate.
        is_signed: Whether negative weights are dropped; if not, there are none.
    """
    dropped = _drop_negative(weights, rate=rate) if is_signed else weights
    return join_heads(multiply(dropped, values))


@chain
def arrange_heads(segment_qkv, memory_kv, content_bias, position_bias):
    """Returns the four tensors of `Heads`; see `attend`."""
    queries, keys, values = ops.split(segment_qkv, 3, axis=-1)
    old_keys, old_values = ops.split(memory_kv, 2, axis=-1)
    n_head = content_bias.shape[0]
    return (
        *_arrange_queries(queries, content_bias, position_bias),
        split_by_head(ops.concatenate([old_keys, keys], axis=1), n_head),
        split_by_head(ops.concatenate([old_values, values], axis=1), n_head),
    )


@chain
def append_heads(segment_qkv, old_keys, old_values, content_bias, position_bias):
    """Returns the four tensors of `Heads`, given cached keys and values (B, N, M, H)."""
    queries, keys, values = ops.split(segment_qkv, 3, axis=-1)
    n_head = content_bias.shape[0]
    return (
        *_arrange_queries(queries, content_bias, position_bias),
        ops.concatenate([old_keys, split_by_head(keys, n_head)], axis=2),
        ops.concatenate([old_values, split_by_head(values, n_head)], axis=2),
    )


def _arrange_queries(queries, content_bias, position_bias):
    """Returns the queries (B, T, N H) with each bias: (B, N, T, H) and (N, B T, W)."""
    n_head, d_head = content_bias.shape
    n_rows, tgt_len, _ = ops.shape(queries)
    by_head = ops.cast(split_heads(queries, n_head), "float32")

    def bias_and_scale(bias):
        biased = fit_width(by_head, bias.shape[1]) + ops.cast(bias, "float32")
        biased *= d_head**-0.5
        return ops.cast(biased, queries.dtype)

    position_queries = ops.transpose(bias_and_scale(position_bias), (2, 0, 1, 3))
    return (
        ops.transpose(bias_and_scale(content_bias), (0, 2, 1, 3)),
        ops.reshape(position_queries, (n_head, n_rows * tgt_len, position_bias.shape[1])),
    )


def split_by_head(states, n_head):
    """Returns states (B, T, N H) as (B, N, T, H)."""
    return ops.transpose(split_heads(states, n_head), (0, 2, 1, 3))


@chain
def _weigh(content, position, mask, seed, *, rate):
    scores = ops.cast(content, "float32") + ops.cast(_shift(position, content), "float32")
    weights = ops.softmax(ops.where(mask, scores, MASKED_SCORE), axis=-1)
    if seed is not None:
        keep = make_keep_mask(ops.shape(weights), rate, seed)
        weights = ops.where(keep, weights, -weights)
    return ops.cast(weights, content.dtype)


def _shift(position, content):
    """Moves scores (N, B T, 1 + S) of distances to the keys, (B, N, T, S)."""
    n_rows, n_head, tgt_len, n_keys = ops.shape(content)
    padded = ops.reshape(position, (n_head, n_rows, tgt_len, 1 + n_keys))
    return ops.transpose(shift_padded(padded), (1, 0, 2, 3))


@chain
def _drop_negative(weights, *, rate):
    dropped = ops.maximum(ops.cast(weights, "float32"), 0) * (1 / (1 - rate))
    return ops.cast(dropped, weights.dtype)


@chain
def join_heads(attended):
    """Returns states (B, N, T, H) as (B, T, N H)."""
    n_rows, n_head, tgt_len, d_head = ops.shape(attended)
    return ops.reshape(ops.transpose(attended, (0, 2, 1, 3)), (n_rows, tgt_len, n_head * d_head))


@chain
def _split_attended(upstream, attended, *, n_head):
    """Returns the upstream gradient by head, and its product with the attended values.

    That product, (B, N, T, 1) float32, is the sum over k of w_k dL/dw_k, which the gradient of
    softmax needs: with o = sum_k w_k v_k, dL/dw_k = dL/do . v_k, so the sum is dL/do . o. It holds
    with dropout, too, whose mask and factor are in o.
    """
    by_head, attended = (split_heads(states, n_head) for states in (upstream, attended))
    slopes = ops.sum(
        ops.cast(by_head, "float32") * ops.cast(attended, "float32"), axis=-1, keepdims=True
    )
    return ops.transpose(by_head, (0, 2, 1, 3)), ops.transpose(slopes, (0, 2, 1, 3))


@chain
def _differentiate_weights(weights, d_dropped, slopes, *, rate):
    """Returns the gradients of the scores: content (B, N, T, S) and position (N, B T, 1 + S)."""
    signed, d_dropped = ops.cast(weights, "float32"), ops.cast(d_dropped, "float32")
    d_weights = ops.where(signed >= 0, d_dropped * (1 / (1 - rate)), 0)
    # Softmax w of scores s: dL/ds_j = w_j (dL/dw_j - sum_k w_k dL/dw_k), and `slopes` is the sum.
    d_scores = ops.cast(ops.abs(signed) * (d_weights - slopes), weights.dtype)
    n_rows, n_head, tgt_len, n_keys = ops.shape(weights)
    # `shift_padded` drops the first T of T (1 + S) numbers and gives the others another shape. Its
    # adjoint is the adjoints of both in reverse: the old shape, after T zeros for those it dropped.
    flat = ops.reshape(ops.transpose(d_scores, (1, 0, 2, 3)), (n_head, n_rows, tgt_len * n_keys))
    flat = ops.pad(flat, [(0, 0), (0, 0), (tgt_len, 0)])
    return d_scores, ops.reshape(flat, (n_head, n_rows * tgt_len, 1 + n_keys))


@chain
def _join_gradients(d_content_queries, d_position_queries, d_keys, d_values, *, mem_len):
    """Returns the gradients of the segment (B, T, 3 N H) and of the memory (B, M, 2 N H)."""
    n_rows, n_head, tgt_len, d_head = ops.shape(d_content_queries)
    width = d_position_queries.shape[2]
    d_position_queries = ops.transpose(
        ops.reshape(d_position_queries, (n_head, n_rows, tgt_len, width)), (1, 0, 2, 3)
    )
    d_position_queries = fit_width(d_position_queries, d_head)
    d_queries = ops.cast(d_content_queries, "float32") + ops.cast(d_position_queries, "float32")
    d_queries = ops.cast(d_queries * d_head**-0.5, d_keys.dtype)

    def join(states, axes):
        states = ops.transpose(states, axes)
        return ops.reshape(states, (n_rows, -1, n_head * d_head))

    d_queries = join(d_queries, (0, 2, 1, 3))
    d_keys, d_values = (join(states, (0, 3, 1, 2)) for states in (d_keys, d_values))
    d_segment = ops.concatenate([d_queries, d_keys[:, mem_len:], d_values[:, mem_len:]], axis=-1)
    d_memory = ops.concatenate([d_keys[:, :mem_len], d_values[:, :mem_len]], axis=-1)
    return d_segment, d_memory


@chain
def _sum_queries(d_content_queries, d_position_queries):
    """Returns the gradients of the biases u (N, H) and v (N, W)."""
    d_head = d_content_queries.shape[-1]
    sums = (
        ops.sum(ops.cast(d_content_queries, "float32"), axis=(0, 2)),
        ops.sum(ops.cast(d_position_queries, "float32"), axis=1),
    )
    return tuple(ops.cast(total * d_head**-0.5, d_content_queries.dtype) for total in sums)
