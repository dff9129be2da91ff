"""The loop that reads texts and observes the attention of each layer, for all analyses."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf
from keras import ops

from txl_tf import LanguageModel
from txl_tf.data import Segment
from txl_tf.layers import shift_padded
from txl_tf.layers.fused.fused_attention import Heads
from txl_tf.layers.memory import clear_rows
from txl_tf.models.cached_model import CachedState, make_cached
from txl_tf.models.compilation import compile_function

TERMS = ("a", "b", "c", "d")  # in the order of section 3.3


class LayerAttention(NamedTuple):
    """The attention of a layer, for the S = M + T keys of the memory and the segment.

    `weights` is the softmax of the sum of the terms (a), (b), (c) and (d) (paper, section 3.3),
    which are divided by sqrt(H). All are 0 where a query does not see the key. A visible key may
    also be an entry of the empty memory.
    """

    weights: tf.Tensor  # (B, N, T, S) float32, as the model uses them
    terms: tuple[tf.Tensor, ...]  # (B, N, T, S) float32 each
    mask: tf.Tensor  # (T, S) or (B, 1, T, S) bool, true where a query sees the key
    is_token: tf.Tensor  # (B, 1, 1, S) bool, false where the key is an entry of the empty memory


class AttentionReader:
    """Reads segments of texts, and reduces the attention of each layer to what an analysis needs.

    The attention is observed while the model reads, so the weights are those that it uses, and only
    the arrays of one layer are held at a time. `reduce` returns the tensors to keep for a layer.
    `finish` turns those of all layers and the hidden states (B, T, D) into the result for a
    segment. `resets` says whether the memory is reset where a document begins. Without `jit`, no
    graph is traced, which is faster for a single short text.
    """

    def __init__(
        self,
        lm: LanguageModel,
        reduce: Callable[[int, LayerAttention, Segment], Any],
        *,
        finish: Callable[[list[Any], tf.Tensor, Segment], Any] = lambda kept, hidden, segment: kept,
        has_terms: bool = True,
        mask_empty_memory: bool = False,
        resets: bool = False,
        jit: str | None = None,
    ):
        self._cached = make_cached(lm.model, lm.evaluation, mask_empty_memory=mask_empty_memory)
        self._reduce = reduce
        self._finish = finish
        self._has_terms = has_terms
        self._resets = resets
        self._steps: list[Any] = [self._skip, self._observe]
        if jit is not None:
            dtype = lm.model.compute_dtype
            self._steps = [compile_function(step, jit, dtype) for step in self._steps]

    def read(
        self, segments: Iterable[Segment], *, n_warm: int = 0
    ) -> Iterator[tuple[Segment, Any]]:
        """Yields each segment and its result as arrays, or `None` for the first `n_warm` ones."""
        state: Any = None
        skip, observe = self._steps
        for index, segment in enumerate(segments):
            if state is None:
                state = self._cached.initial_state(len(segment.ids))
            elif segment.begins.any():
                state = clear_rows(state, segment.begins)
            starts = segment.document_starts if self._resets else None
            if index < n_warm:
                result, state = None, skip(segment, starts, state)
            else:
                result, state = observe(segment, starts, state)
                result = tf.nest.map_structure(lambda tensor: tensor.numpy(), result)
            yield segment, result

    def _skip(self, segment: Segment, starts: Any, state: CachedState) -> CachedState:
        """Returns the state after a segment that only fills the memory."""
        return self._cached.read(segment.ids, state, document_starts=starts)[1]

    def _observe(
        self, segment: Segment, starts: Any, state: CachedState
    ) -> tuple[Any, CachedState]:
        """Returns the result for a segment, and the state after it."""
        mem_len = self._cached.span.mem_len
        n_keys = mem_len + ops.shape(segment.ids)[1]
        is_filled = tf.range(n_keys) >= mem_len - state.filled[:, None]  # (B, S)
        kept: list[Any] = []

        def observe(
            layer: int,
            heads: Heads,
            distance_keys: tf.Tensor,
            mask: tf.Tensor,
            weights: tf.Tensor,
        ) -> None:
            terms: tuple[tf.Tensor, ...] = ()
            if self._has_terms:
                model = self._cached.model
                biases = model.encoding.get_biases(model, layer)
                terms = split_scores(heads, distance_keys, mask, *biases)
            weights = tf.cast(weights, tf.float32)
            attention = LayerAttention(weights, terms, mask, is_filled[:, None, None])
            kept.append(self._reduce(layer, attention, segment))

        ids = segment.ids
        hidden, state = self._cached.read(ids, state, document_starts=starts, observe=observe)
        return self._finish(kept, hidden, segment), state


def split_scores(
    heads: Heads,
    distance_keys: tf.Tensor,
    mask: tf.Tensor,
    content_bias: tf.Tensor,
    position_bias: tf.Tensor,
) -> tuple[tf.Tensor, ...]:
    """Returns the four terms of the scores of a layer, as in `LayerAttention`.

    Shapes: distance_keys (N, 1 + S, W), content_bias u (N, H), position_bias v (N, W).
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
    shape = (n_rows, n_head, tgt_len, n_keys)
    return tuple(tf.where(mask, tf.broadcast_to(term, shape), 0.0) for term in terms)
