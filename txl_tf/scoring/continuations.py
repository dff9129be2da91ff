"""The log-likelihoods of given continuations."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.config import EvalConfig
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError, check_integer
from txl_tf.layers.memory import clear_rows
from txl_tf.models.cached_model import FrozenModel
from txl_tf.models.segment_model import SegmentModel
from txl_tf.scoring.segment_loop import FrozenReader, cut_rows, score_segments


class Continuation(NamedTuple):
    """A possible continuation of a context."""

    context: np.ndarray  # (n,) int32, at least one id
    ids: np.ndarray  # (k,) int32


class ContinuationScore(NamedTuple):
    """The score of a continuation."""

    log_prob: float  # of all tokens given the context, in nats; 0 if there are none
    is_greedy: bool  # whether each token is the most likely one


def encode_continuation(
    vocabulary: Vocabulary, context: str, continuation: str, prefix: str
) -> Continuation:
    """Encodes a context (or the prefix, if the context has no tokens) and its continuation.

    No token crosses the boundary: a word or subword that would cross it is cut there.

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
    """Scores continuations in batches; each context starts with an empty, hidden memory."""

    def __init__(self, model: SegmentModel, config: EvalConfig, batch_size: int):
        check_integer("batch_size", batch_size, 1)
        self._reader = FrozenReader(model, config, mask_empty_memory=True, score=_score_greedily)
        self._tgt_len = config.tgt_len
        self._batch_size = batch_size

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
        lengths = np.zeros(self._batch_size, np.int32)
        lengths[: len(batch)] = [_count(continuation) - 1 for continuation in batch]
        ids = np.zeros((self._batch_size, lengths.max() + 1), np.int32)
        for row, pair in enumerate(batch):
            ids[row, : lengths[row] + 1] = np.concatenate(pair)
        segments = cut_rows(ids, lengths, self._tgt_len)
        found = [results for _, results in score_segments(self._reader, segments)]
        nats, greedy = (np.concatenate(arrays, axis=1) for arrays in zip(*found, strict=True))
        for row, (context, continuation) in enumerate(batch):
            scored = slice(len(context) - 1, len(context) - 1 + len(continuation))
            log_prob = -float(nats[row, scored].sum(dtype=np.float64))
            is_greedy = bool((greedy[row, scored] == continuation).all())
            yield ContinuationScore(log_prob, is_greedy)


def _score_greedily(
    cached: FrozenModel,
    ids: tf.Tensor,
    targets: tf.Tensor,
    state: Any,
    counts: tf.Tensor,
    document_starts: tf.Tensor | None,
    begins: tf.Tensor,
) -> tuple[tuple[tf.Tensor, tf.Tensor], Any]:
    """Returns -log p of each target, and the most likely token at its position, (B, T) int32."""
    model = cached.model
    hidden, state = cached.read(ids, clear_rows(state, begins), counts, document_starts)

    def choose(states: tf.Tensor) -> tf.Tensor:
        return tf.argmax(model.log_probs(states[:, None])[:, 0], -1, tf.int32)

    # One position at a time: all logits of a large vocabulary would take gigabytes.
    by_position = tf.transpose(hidden, (1, 0, 2))
    greedy = tf.map_fn(choose, by_position, fn_output_signature=tf.int32)
    nats = model.nll(hidden, targets, temperature=cached.temperature)
    return (nats, tf.transpose(greedy)), state


def _count(continuation: Continuation) -> int:
    return len(continuation.context) + len(continuation.ids)
