"""How likely texts go on in given ways."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.cached_model import CachedModel, CachedState
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.errors import UserError


class Continuation(NamedTuple):
    """What a text may go on with.

    Args:
        context: (n,) int32, the ids before it, at least one.
        ids: (k,) int32.
    """

    context: np.ndarray
    ids: np.ndarray


class ContinuationScore(NamedTuple):
    """How likely a continuation is.

    Args:
        log_prob: of all its tokens given its context, in nats; 0 if there are none.
        is_greedy: whether each of them is the likeliest.
    """

    log_prob: float
    is_greedy: bool


def encode_continuation(
    vocabulary: Vocabulary, context: str, continuation: str, prefix: str
) -> Continuation:
    """Returns the ids of a context and of what comes after it.

    No token crosses the boundary, at any level: where a word or a piece would, it is cut there.

    Args:
        vocabulary: the symbols.
        context: the text before.
        continuation: the text after.
        prefix: stands in for a context of no token.

    Raises:
        UserError: a symbol is not in the vocabulary, or neither context nor prefix has a token.
    """
    ids = vocabulary.encode(context)
    if not len(ids):
        context, ids = prefix, vocabulary.encode(prefix)
    if not len(ids):
        raise UserError(
            "`prefix` must hold a token where the context holds none. "
            f"Received: prefix={prefix!r}, a vocabulary of level {vocabulary.level!r}"
        )
    begins_line = context.endswith("\n")
    encoded = vocabulary.codec.encode(continuation.encode("utf-8"), begins_line=begins_line)
    if encoded.unknown and vocabulary.unknown is None:
        vocabulary.encode(continuation)  # raises, with what is unknown
    return Continuation(ids, encoded.ids)


class ContinuationScorer:
    """Scores continuations, many at a time, each after its context and an empty memory.

    Args:
        cached: the model.
        batch_size: how many rows B.
    """

    def __init__(self, cached: CachedModel, batch_size: int):
        if batch_size < 1:
            raise UserError(f"`batch_size` must be positive. Received: batch_size={batch_size}")
        self._cached = cached
        self._tgt_len = cached.tgt_len
        self._batch_size = batch_size
        self._read = tf.function(self._compute, jit_compile=True, autograph=False)

    def score(self, continuations: Sequence[Continuation]) -> list[ContinuationScore]:
        """Returns the score of each."""
        order = sorted(range(len(continuations)), key=lambda i: -_count(continuations[i]))
        scores: dict[int, ContinuationScore] = {}
        for start in range(0, len(order), self._batch_size):
            places = order[start : start + self._batch_size]
            batch = [continuations[place] for place in places]
            scores.update(zip(places, self._score_batch(batch), strict=True))
        return [scores[place] for place in range(len(continuations))]

    def _score_batch(self, batch: Sequence[Continuation]) -> Iterator[ContinuationScore]:
        width = -(-(max(map(_count, batch)) - 1) // self._tgt_len) * self._tgt_len
        ids = np.zeros((self._batch_size, width + 1), np.int32)
        lengths = np.zeros(self._batch_size, np.int32)
        for row, (context, continuation) in enumerate(batch):
            text = np.concatenate([context, continuation])
            ids[row, : len(text)] = text
            lengths[row] = len(text) - 1  # that have a token after them
        state = self._cached.initial_state(self._batch_size)
        nats = np.zeros((self._batch_size, width), np.float32)
        likeliest = np.zeros((self._batch_size, width), np.int32)
        for start in range(0, width, self._tgt_len):
            part = slice(start, start + self._tgt_len)
            targets = ids[:, start + 1 : start + self._tgt_len + 1]
            counts = np.clip(lengths - start, 0, self._tgt_len).astype(np.int32)
            tensors = map(tf.constant, (ids[:, part], targets, counts))
            *found, state = self._read(*tensors, state)
            nats[:, part], likeliest[:, part] = (values.numpy() for values in found)
        for row, (context, continuation) in enumerate(batch):
            part = slice(len(context) - 1, len(context) - 1 + len(continuation))
            log_prob = -float(nats[row, part].sum(dtype=np.float64))
            is_greedy = bool((likeliest[row, part] == continuation).all())
            yield ContinuationScore(log_prob, is_greedy)

    def _compute(
        self,
        ids: tf.Tensor,
        targets: tf.Tensor,
        counts: tf.Tensor,
        state: CachedState,
    ) -> tuple[tf.Tensor, tf.Tensor, CachedState]:
        """Returns the losses of the targets, the likeliest tokens, (B, T), and the new state."""
        model = self._cached.model
        hidden, state = self._cached.read(ids, state, counts)

        def choose(states: tf.Tensor) -> tf.Tensor:
            return tf.argmax(model.log_probs(states[:, None])[:, 0], -1, tf.int32)

        # One place after the other: of a large vocabulary, all would take gigabytes.
        by_place = tf.transpose(hidden, (1, 0, 2))
        likeliest = tf.map_fn(choose, by_place, fn_output_signature=tf.int32)
        return model.nll(hidden, targets), tf.transpose(likeliest), state


def _count(continuation: Continuation) -> int:
    return len(continuation.context) + len(continuation.ids)
