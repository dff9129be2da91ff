"""The predictions for each token of a text: losses, likely alternatives and strongest keys."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.cached_model import CachedModel, CachedState
from txl_tf.compilation import compile_function, explain_full_memory
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.experiments.attention_terms import LayerAttention, read_attention
from txl_tf.experiments.text_attention import Head
from txl_tf.scoring.metrics import Score

# Log-probabilities of the whole vocabulary that are held at a time.
_MAX_LOG_PROBS = 2**24
_ADVICE = "to read the text: try a smaller --tgt_len or --mem_len"


class TextTrace(NamedTuple):
    """The predictions of the tokens 1 to n - 1 of a text of n tokens: row i predicts token i + 1.

    The attention in row i is that of token i, the last one that the model has read when it predicts
    token i + 1. There is an entry for the mean of all heads of all layers, and one for each of the
    K - 1 chosen heads.

    Args:
        ids: (n,) int32, the text.
        nats: (n - 1,) float32, -log p of each token, with the softmax temperature of the reader.
        ranks: (n - 1,) int32, the number of tokens that were likelier, plus 1.
        alternatives: (n - 1, A) int32, the likeliest tokens, the likeliest first.
        log_probs: (n - 1, A) float32, their log-probabilities in nats.
        heads: The chosen heads, in ascending order.
        keys: (n - 1, K, k) int32, the positions in the text of the keys with the largest weights,
            the largest first; arbitrary where the weight is 0.
        weights: (n - 1, K, k) float32, their weights.
        in_memory: (n - 1, K) float32, the sum of the weights of all tokens in the memory, which are
            those before the segment of token i.
        empty: (n - 1, K) float32, the weight of the empty memory.
    """

    ids: np.ndarray
    nats: np.ndarray
    ranks: np.ndarray
    alternatives: np.ndarray
    log_probs: np.ndarray
    heads: Sequence[Head]
    keys: np.ndarray
    weights: np.ndarray
    in_memory: np.ndarray
    empty: np.ndarray

    def sum_up(self, vocabulary: Vocabulary | None) -> Score:
        """Returns the score of the text.

        Args:
            vocabulary: The vocabulary, for the level and the unknown tokens; `None` if only ids
                are known.
        """
        n_unknown = level = None
        if vocabulary is not None:
            level = vocabulary.level
            n_unknown = 0
            if vocabulary.unknown_id is not None:
                n_unknown = int(np.count_nonzero(self.ids[1:] == vocabulary.unknown_id))
        total = float(self.nats.sum(dtype=np.float64))
        return Score(total, len(self.nats), level, n_unknown)


class _Attention(NamedTuple):
    """The attention of K heads in a segment."""

    columns: tf.Tensor  # (K, T, k) int32, the columns of the strongest keys
    weights: tf.Tensor  # (K, T, k)
    in_memory: tf.Tensor  # (K, T)
    empty: tf.Tensor  # (K, T)


class TextTracer:
    """Reads texts in segments, each with an empty memory before it, for their predictions.

    Args:
        cached: The model.
        heads: The heads whose attention is returned, all different.
        n_alternatives: The number of alternatives A, at most the size of the vocabulary.
        n_keys: The number of keys k of each head.
        pads_segments: Whether to fill the last segment of a text up to `cached.tgt_len`, so that
            texts of all lengths share one traced function. The numbers are the same, up to
            rounding.
    """

    def __init__(
        self,
        cached: CachedModel,
        heads: Sequence[Head],
        *,
        n_alternatives: int,
        n_keys: int,
        pads_segments: bool = False,
    ):
        self._cached = cached
        self._heads = sorted(heads)
        self._n_alternatives = n_alternatives
        self._n_keys = n_keys
        self._pads_segments = pads_segments
        self._step = compile_function(self._read_segment, "none", cached.model.compute_dtype)

    @explain_full_memory(_ADVICE)
    def trace(
        self, ids: np.ndarray, *, report: Callable[[int], object] = lambda n_ids: None
    ) -> TextTrace:
        """Reads a text with an empty memory, and returns the predictions of its tokens.

        Args:
            ids: (n,) int32, the text, of at least 2 tokens.
            report: Called with the number of tokens after each segment.

        Raises:
            UserError: If the device's memory is full.
        """
        tgt_len, mem_len = self._cached.tgt_len, self._cached.span.mem_len
        self._cached.follow_weights()
        state = self._cached.initial_state(1)
        predictions, attentions = [], []
        for start in range(0, len(ids) - 1, tgt_len):
            segment = ids[start : start + tgt_len + 1]
            count = len(segment) - 1
            if self._pads_segments:
                segment = np.pad(segment, (0, tgt_len - count))
            inputs, targets = (tf.constant(part[None]) for part in (segment[:-1], segment[1:]))
            guesses, attention, state = self._step(inputs, targets, state)
            predictions.append([tensor.numpy()[:count] for tensor in guesses])
            arrays = [np.moveaxis(tensor.numpy(), 0, 1)[:count] for tensor in attention]
            arrays[0] = np.maximum(arrays[0] + (start - mem_len), 0)  # positions in the text
            attentions.append([_pad(array, self._n_keys) for array in arrays[:2]] + arrays[2:])
            report(count)
        nats, ranks, alternatives, log_probs = (
            np.concatenate(parts) for parts in zip(*predictions, strict=True)
        )
        found = [np.concatenate(parts) for parts in zip(*attentions, strict=True)]
        return TextTrace(ids, nats, ranks, alternatives, log_probs, self._heads, *found)

    def _read_segment(self, inputs: tf.Tensor, targets: tf.Tensor, state: CachedState) -> tuple:
        """Returns guesses about the targets, the attention, and the new state."""
        cached, config = self._cached, self._cached.model.config
        n_keys, mem_len = self._n_keys, cached.span.mem_len

        def keep(layer: int, attention: LayerAttention) -> tuple[_Attention, tf.Tensor]:
            is_seen = tf.logical_and(attention.mask, attention.is_token)[0]
            weights = tf.where(is_seen, attention.weights[0], 0.0)  # (N, T, S)
            chosen = [head.head for head in self._heads if head.layer == layer]
            of_heads = tf.gather(weights, np.array(chosen, np.int32))
            return _find_keys(of_heads, n_keys, mem_len), tf.reduce_sum(weights, axis=0)

        kept, hidden, state = read_attention(cached, inputs, state, keep, with_terms=False)
        mean = sum(weights for _, weights in kept) / (config.n_layer * config.n_head)
        parts = [_find_keys(mean[None], n_keys, mem_len), *(part for part, _ in kept)]
        attention = _Attention(*(tf.concat(tensors, 0) for tensors in zip(*parts, strict=True)))
        nats = cached.model.nll(hidden, targets, temperature=cached.temperature)[0]
        guesses = _find_alternatives(cached, hidden, targets[0], self._n_alternatives)
        return (nats, *guesses), attention, state


def _find_keys(weights: tf.Tensor, n_keys: int, mem_len: int) -> _Attention:
    """Returns the strongest keys, given the weights (K, T, S) of the tokens."""
    top = tf.math.top_k(weights, min(n_keys, weights.shape[-1]))
    total = tf.reduce_sum(weights, axis=-1)
    in_memory = tf.reduce_sum(weights[..., :mem_len], axis=-1)
    return _Attention(top.indices, top.values, in_memory, tf.maximum(1 - total, 0.0))


def _find_alternatives(
    cached: CachedModel, hidden: tf.Tensor, targets: tf.Tensor, count: int
) -> tuple[tf.Tensor, ...]:
    """Returns the ranks of the targets (T,), and ids and log-probabilities of alternatives (T, A).

    Args:
        cached: The model.
        hidden: (1, T, D).
        targets: (T,) int32.
        count: The number of alternatives A.
    """
    size = max(1, _MAX_LOG_PROBS // cached.model.config.n_token)
    parts = []
    for start in range(0, targets.shape[0], size):
        log_probs = cached.model.log_probs(hidden[:, start : start + size])[0]  # (t, V)
        if cached.temperature != 1:
            log_probs = tf.nn.log_softmax(log_probs / cached.temperature)
        own = tf.gather(log_probs, targets[start : start + size], batch_dims=1)
        rank = 1 + tf.reduce_sum(tf.cast(log_probs > own[:, None], tf.int32), axis=1)
        top = tf.math.top_k(log_probs, count)
        parts.append((rank, top.indices, top.values))
    return tuple(tf.concat(tensors, 0) for tensors in zip(*parts, strict=True))


def _pad(array: np.ndarray, n_keys: int) -> np.ndarray:
    """Returns an array (T, K, k) with zeros up to `n_keys` columns."""
    return np.pad(array, ((0, 0), (0, 0), (0, n_keys - array.shape[-1])))
