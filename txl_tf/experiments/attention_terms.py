"""The attention of each layer to a segment and its memory: the weights and the terms of the scores.

They are taken from the model while it reads, so the layers know nothing of it.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import tensorflow as tf
from keras import ops

from txl_tf.cached_model import CachedModel, CachedState
from txl_tf.layers.fused.fused_attention import Heads, Visibility, weigh
from txl_tf.layers.relative_attention import shift_padded

TERMS = ("a", "b", "c", "d")  # in the order of section 3.3
Kept = TypeVar("Kept")


class LayerAttention(NamedTuple):
    """The attention of a layer, for the S = M + T keys of the memory and the segment.

    Args:
        weights: (B, N, T, S) float32, the attention weights that the model uses.
        terms: The terms (a), (b), (c) and (d) of the scores (paper, section 3.3), (B, N, T, S)
            float32 each, divided by sqrt(H): the softmax of their sum is `weights`. They are 0
            where a query does not see the key.
        mask: (T, S) or (B, 1, T, S) bool, true where a query sees the key.
        is_token: (B, 1, 1, S) or (B, 1, T, S) bool, true where the key is a token of the query's
            text; false for an empty memory, and for tokens of another document, which are treated
            like one.
    """

    weights: tf.Tensor
    terms: tuple[tf.Tensor, ...]
    mask: tf.Tensor
    is_token: tf.Tensor


def read_attention(
    cached: CachedModel,
    ids: tf.Tensor,
    state: CachedState,
    keep: Callable[[int, LayerAttention], Kept],
    document_starts: tf.Tensor | None = None,
    *,
    with_terms: bool = True,
) -> tuple[list[Kept], tf.Tensor, CachedState]:
    """Reads a segment, and keeps something of the attention of each layer.

    Args:
        cached: The model.
        ids: As in `CachedModel.read`.
        state: As in `CachedModel.read`.
        keep: Called with the index and the attention of each layer. Only its result is kept, so
            the arrays of one layer are held at a time.
        document_starts: As in `CachedModel.read`.
        with_terms: Whether to compute the terms of the scores; if not, `terms` is empty.

    Returns:
        The results of `keep`, one for each layer; the hidden states; and the new state.
    """
    mem_len = cached.span.mem_len
    n_keys = mem_len + ops.shape(ids)[1]
    is_filled = tf.range(n_keys) >= mem_len - state.filled[:, None]  # (B, S)
    kept: list[Kept] = []

    def watch(heads: Heads, distance_keys: tf.Tensor, visibility: Visibility) -> tf.Tensor:
        layer = len(kept)
        terms: tuple[tf.Tensor, ...] = ()
        if with_terms:
            biases = cached.model.get_biases(layer)
            terms = split_scores(heads, distance_keys, visibility, *biases)
        is_token = is_filled[:, None, None]
        if visibility.same_document is not None:
            is_token = tf.logical_and(is_token, visibility.same_document[:, None])
        signed = weigh(heads, distance_keys, visibility)  # negative for other documents
        attention = LayerAttention(
            tf.abs(tf.cast(signed, tf.float32)), terms, visibility.mask, is_token
        )
        kept.append(keep(layer, attention))
        return signed

    hidden, state = cached.read(ids, state, document_starts=document_starts, compute_weights=watch)
    return kept, hidden, state


def split_scores(
    heads: Heads,
    distance_keys: tf.Tensor,
    visibility: Visibility,
    content_bias: tf.Tensor,
    position_bias: tf.Tensor,
) -> tuple[tf.Tensor, ...]:
    """Returns the four terms of the scores of a layer, as in `LayerAttention`.

    Args:
        heads: The queries with their biases, and the keys.
        distance_keys: (N, 1 + S, W), W_r R by head, after a row that no query sees.
        visibility: What each query sees.
        content_bias: (N, H), u.
        position_bias: (N, W), v.
    """
    n_rows, n_head, tgt_len, d_head = ops.shape(heads.content_queries)
    n_keys = ops.shape(heads.keys)[2]
    content_queries, position_queries, keys, rows, u, v = (
        tf.cast(tensor, tf.float32)
        for tensor in (*heads[:3], distance_keys, content_bias, position_bias)
    )
    u, v = u[:, None] * d_head**-0.5, v[:, None] * d_head**-0.5  # (N, 1, H)
    position_queries = tf.reshape(position_queries, (n_head, n_rows, tgt_len, v.shape[2]))
    by_distance = tf.matmul(position_queries - v[:, None], rows[:, None], transpose_b=True)
    biased = tf.tile(tf.matmul(v, rows, transpose_b=True), (1, tgt_len, 1))  # (N, T, 1 + S)
    terms = (
        tf.matmul(content_queries - u, keys, transpose_b=True),
        tf.transpose(shift_padded(by_distance), (1, 0, 2, 3)),
        tf.matmul(u, keys, transpose_b=True),  # (B, N, 1, S)
        shift_padded(biased),  # (N, T, S)
    )
    mask = content_mask = visibility.mask
    if visibility.same_document is not None:  # the keys of other documents are 0
        content_mask = tf.logical_and(mask, visibility.same_document[:, None])
    masks = (content_mask, mask, content_mask, mask)
    shape = (n_rows, n_head, tgt_len, n_keys)
    return tuple(
        tf.where(seen, tf.broadcast_to(term, shape), 0.0)
        for seen, term in zip(masks, terms, strict=True)
    )
