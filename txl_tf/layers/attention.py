"""Relative attention as the paper defines it (Dai et al. 2019, section 3.3 and appendix B).

With q from the segment, and k and v from memory and segment, the score of query i and key j, both
counted from the start of the segment (j < 0 in the memory), is

    score(i, j) = ((q_i + u) . k_j + (q_i + v) . W_{k,R} R_{i-j}) / sqrt(H)

It has four terms: (a) q . k, content; (b) q . W_{k,R} R, content and position; (c) u . k, the
global content bias; (d) v . W_{k,R} R, the global position bias. `attend` is this equation,
function by function. `txl_tf.layers.fused.fused_attention.attend` computes the same faster, and a
test compares them.
"""

from keras import ops

from txl_tf.layers.dropout import drop_entries
from txl_tf.layers.encodings import fit_width

MASKED_SCORE = -1e30  # in float32, where softmax makes it an exact 0


def attend(
    segment_qkv, memory_kv, distance_keys, content_bias, position_bias, mask, seed=None, *, rate=0.0
):
    """Returns the values that each query attends to.

    Args:
        segment_qkv: (B, T, 3 N H), the queries, keys and values of the segment.
        memory_kv: (B, M, 2 N H), the keys and values of the memory.
        distance_keys: (S, N, W), W_{k,R} R of the distances S-1, ..., 0, with S = M + T.
        content_bias: (N, H), u.
        position_bias: (N, W), v. W is H, except for encodings other than the paper's.
        mask: (T, S) or (B, 1, T, S) bool, true where a query may see a key.
        seed: (2,) integers, the seed of the dropout of the weights; `None` without dropout.
        rate: Dropout rate of the weights.

    Returns:
        (B, T, N H) in the dtype of `segment_qkv`.
    """
    # 1) The queries of the segment, and the keys and values of memory and segment, by head.
    query, keys, values = join_memory(segment_qkv, memory_kv, content_bias.shape[0])

    # 2) The scores of all pairs, and their softmax over the keys that a query sees.
    content = score_content(query, keys, content_bias)  # (B, N, T, S)
    position = score_position(query, distance_keys, position_bias)
    weights = compute_weights(content, position, mask)
    weights = drop_entries(weights, seed, rate, is_locked=False)

    # 3) The weighted sums of the values.
    return sum_values(weights, values)


def join_memory(segment_qkv, memory_kv, n_head):
    """Returns q (B, T, N, H), and k and v (B, S, N, H) of memory and segment; see `attend`."""
    query, keys, values = ops.split(segment_qkv, 3, axis=-1)
    old_keys, old_values = ops.split(memory_kv, 2, axis=-1)
    keys = ops.concatenate([old_keys, keys], axis=1)
    values = ops.concatenate([old_values, values], axis=1)
    return tuple(split_heads(states, n_head) for states in (query, keys, values))


def split_heads(states, n_head):
    """Returns states (..., N H) as (..., N, H)."""
    *shape, width = ops.shape(states)
    return ops.reshape(states, (*shape, n_head, width // n_head))


def score_content(query, keys, content_bias):
    """Returns the terms (a) + (c) of the scores, (B, N, T, S)."""
    return ops.einsum("btnh,bsnh->bnts", bias_and_scale(query, content_bias), keys)


def score_position(query, distance_keys, position_bias):
    """Returns the terms (b) + (d) of the scores, (B, N, T, S), undefined for keys after the query.

    The products are computed for all distances at once and moved to their keys.
    """
    query = bias_and_scale(query, position_bias)
    return left_shift(ops.einsum("btnh,snh->bnts", query, distance_keys))


def bias_and_scale(query, bias):
    """Returns (query + bias) / sqrt(H), (B, T, N, W); the bias is u or v, (N, W)."""
    return (fit_width(query, bias.shape[-1]) + bias) * query.shape[-1] ** -0.5


def compute_weights(content, position, mask):
    """Returns the softmax of the visible scores over the keys, (B, N, T, S) float32."""
    scores = ops.where(mask, ops.cast(content + position, "float32"), MASKED_SCORE)
    return ops.softmax(scores, axis=-1)


def sum_values(weights, values):
    """Returns the sums of the values, (B, T, N H), with the weights (B, N, T, S)."""
    attended = ops.einsum("bnts,bsnh->btnh", ops.cast(weights, values.dtype), values)
    return ops.reshape(attended, (*ops.shape(attended)[:2], -1))


def left_shift(scores):
    """Moves the score of each distance to the key at that distance (paper, appendix B).

    Row i of the input holds the scores of query i for the distances S-1, ..., 0. Row i of the
    output holds them for the keys 0, ..., S-1: it is the input row shifted left by T-1-i. The
    entries shifted in belong to keys after the query: they are undefined and must be masked.

    In the 2019 code: `rel_shift`.

    Args:
        scores: (..., T, S) of any dtype.

    Returns:
        (..., T, S) of the same dtype.

    >>> ops.convert_to_numpy(left_shift(ops.convert_to_tensor([[3, 2, 1], [6, 5, 4]]))).tolist()
    [[2, 1, 0], [6, 5, 4]]
    """
    return shift_padded(ops.pad(scores, [(0, 0)] * (len(scores.shape) - 1) + [(1, 0)]))


def shift_padded(padded):
    """Returns `left_shift` of scores that already have a first column of padding, of any values.

    Read row by row, input row i begins at i (1 + S), with its padding. After the first T numbers
    are dropped and the rest is cut every S, output row i begins at T + i S = i (1 + S) + 1 +
    (T-1-i), which is T-1-i places after the first score of input row i.

    Args:
        padded: (..., T, 1 + S) of any dtype.

    Returns:
        (..., T, S) of the same dtype.
    """
    *batch, tgt_len, n_columns = ops.shape(padded)
    scores = ops.reshape(padded, (*batch, tgt_len * n_columns))[..., tgt_len:]
    return ops.reshape(scores, (*batch, tgt_len, n_columns - 1))
