"""The log-likelihoods of given continuations."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.cached_model import SegmentReader, State
from txl_tf.compilation import compile_function
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError


class Continuation(NamedTuple):
    """A possible continuation of a context.

    Args:
        context: (n,) int32, the ids of the context, at least one.
        ids: (k,) int32, the ids of the continuation.
    """

    context: np.ndarray
    ids: np.ndarray


class ContinuationScore(NamedTuple):
    """The score of a continuation.

    Args:
        log_prob: The log-probability of all tokens given the context, in nats; 0 if there are none.
        is_greedy: Whether each token is the most likely one.
    """

    log_prob: float
    is_greedy: bool


def encode_continuation(
    vocabulary: Vocabulary, context: str, continuation: str, prefix: str
) -> Continuation:
    """Encodes a context and its continuation.

    No token crosses the boundary: a word or subword that would is cut there.

    Args:
        vocabulary: The vocabulary.
        context: The text of the context.
        continuation: The text of the continuation.
        prefix: Replaces a context without tokens.

    Raises:
        UserError: If the vocabulary cannot encode a symbol, or neither the context nor the prefix
            has a token.
    """
    ids = vocabulary.encode(context)
    if not len(ids):
        context, ids = prefix, vocabulary.encode(prefix)
    if not len(ids):
        raise UserError(
            "`prefix` must hold a token if the context holds none. "
            f"Received: prefix={prefix!r}, a vocabulary of level {vocabulary.level!r}"
        )
    begins_line = context.endswith("\n")
    encoded = vocabulary.codec.encode(continuation.encode("utf-8"), begins_line=begins_line)
    if encoded.unknown and vocabulary.unknown is None:
        vocabulary.encode(continuation)  # raises an error that names the unknown symbols
    return Continuation(ids, encoded.ids)


class ContinuationScorer:
    """Scores continuations in batches. Each context begins with an empty memory.

    Args:
        cached: The model.
        batch_size: Number of rows B.

    Raises:
        UserError: If `batch_size` is not positive.
    """

    def __init__(self, cached: SegmentReader, batch_size: int):
        if batch_size < 1:
            raise UserError(f"`batch_size` must be positive. Received: batch_size={batch_size}")
        self._cached = cached
        self._tgt_len = cached.tgt_len
        self._batch_size = batch_size
        self._read = compile_function(self._compute, "auto", cached.model.compute_dtype)

    def score(self, continuations: Sequence[Continuation]) -> list[ContinuationScore]:
        """Returns the score of each continuation."""
        order = sorted(range(len(continuations)), key=lambda i: -_count(continuations[i]))
        scores: dict[int, ContinuationScore] = {}
        for start in range(0, len(order), self._batch_size):
            indices = order[start : start + self._batch_size]
            batch = [continuations[index] for index in indices]
            scores.update(zip(indices, self._score_batch(batch), strict=True))
        return [scores[index] for index in range(len(continuations))]

    def _score_batch(self, batch: Sequence[Continuation]) -> Iterator[ContinuationScore]:
        width = -(-(max(map(_count, batch)) - 1) // self._tgt_len) * self._tgt_len
        ids = np.zeros((self._batch_size, width + 1), np.int32)
        lengths = np.zeros(self._batch_size, np.int32)
        for row, (context, continuation) in enumerate(batch):
            text = np.concatenate([context, continuation])
            ids[row, : len(text)] = text
            lengths[row] = len(text) - 1  # number of inputs, which have a target
        state = self._cached.initial_state(self._batch_size)
        nats = np.zeros((self._batch_size, width), np.float32)
        greedy = np.zeros((self._batch_size, width), np.int32)
        for start in range(0, width, self._tgt_len):
            segment = slice(start, start + self._tgt_len)
            targets = ids[:, start + 1 : start + self._tgt_len + 1]
            counts = np.clip(lengths - start, 0, self._tgt_len).astype(np.int32)
            tensors = map(tf.constant, (ids[:, segment], targets, counts))
            *results, state = self._read(*tensors, state)
            nats[:, segment], greedy[:, segment] = (values.numpy() for values in results)
        for row, (context, continuation) in enumerate(batch):
            scored = slice(len(context) - 1, len(context) - 1 + len(continuation))
            log_prob = -float(nats[row, scored].sum(dtype=np.float64))
            is_greedy = bool((greedy[row, scored] == continuation).all())
            yield ContinuationScore(log_prob, is_greedy)

    def _compute(
        self,
        ids: tf.Tensor,
        targets: tf.Tensor,
        counts: tf.Tensor,
        state: State,
    ) -> tuple[tf.Tensor, tf.Tensor, State]:
        """Returns the losses of the targets and the greedy tokens, (B, T), and the new state."""
        model = self._cached.model
        hidden, state = self._cached.read(ids, state, counts)

        def choose(states: tf.Tensor) -> tf.Tensor:
            return tf.argmax(model.log_probs(states[:, None])[:, 0], -1, tf.int32)

        # One position at a time: all logits of a large vocabulary would take gigabytes.
        by_position = tf.transpose(hidden, (1, 0, 2))
        greedy = tf.map_fn(choose, by_position, fn_output_signature=tf.int32)
        nats = model.nll(hidden, targets, temperature=self._cached.temperature)
        return nats, tf.transpose(greedy), state


def _count(continuation: Continuation) -> int:
    return len(continuation.context) + len(continuation.ids)
