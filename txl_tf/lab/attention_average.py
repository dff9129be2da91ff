"""Attention by distance, averaged over the targets of a split (paper, appendix D)."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf import LanguageModel
from txl_tf.data import EvaluationLanes, Segment
from txl_tf.data.lanes.training_lanes import Tokens
from txl_tf.lab.attention_reader import TERMS, AttentionReader, LayerAttention
from txl_tf.lab.text_attention import Head
from txl_tf.layers import left_shift
from txl_tf.layers.attention import MASKED_SCORE
from txl_tf.models.compilation import explain_full_memory
from txl_tf.scoring.evaluator import choose_warm_len

# The most scores of a layer to hold at a time, unless one lane alone has more.
_MAX_SCORES = 2**24


class AttentionAverages(NamedTuple):
    """The mean attention of each head by distance: column d is the token d before the last one.

    The last token read, from which the target is predicted, has distance 0. `weights` (figure 5)
    are the mean attention weights. `terms` (figure 7), by their letters in the paper, are the same
    for each term of the scores alone, passed through its own softmax.
    """

    n_targets: int
    tgt_len: int  # the segment length T
    weights: np.ndarray  # (L, N, distances) float64
    terms: dict[str, np.ndarray]  # (L, N, distances) float64 each

    @property
    def empty(self) -> np.ndarray:
        """(L, N), the mean weight on the empty memory, which resets at documents hide."""
        return np.maximum(1 - self.weights.sum(axis=-1), 0)

    @property
    def mean_distance(self) -> np.ndarray:
        """(L, N), the mean distance of the tokens that are attended to."""
        distances = np.arange(self.weights.shape[-1])
        return self.weights @ distances / self.weights.sum(axis=-1)

    @property
    def beyond_segment(self) -> np.ndarray:
        """(L, N), the share at distances of T or more, which cannot be seen without a memory."""
        far = self.weights[..., self.tgt_len :].sum(axis=-1)
        return far / self.weights.sum(axis=-1)

    def find_distance(self, share: float) -> np.ndarray:
        """Returns the smallest distances (L, N) that hold a share of the weight."""
        sums = np.cumsum(self.weights, axis=-1)
        return np.argmax(sums >= share * sums[..., -1:], axis=-1)

    def find_widest_heads(self) -> list[Head]:
        """Returns the three heads with the largest mean distances, the widest first (figure 6)."""
        distances = self.mean_distance
        order = np.argsort(-distances, axis=None, kind="stable")[:3]
        places = zip(*np.unravel_index(order, distances.shape), strict=True)
        return [Head(int(layer), int(head)) for layer, head in places]


def cut_attention_lanes(lm: LanguageModel, split: Tokens, *, n_targets: int) -> EvaluationLanes:
    """Cuts a split into few enough lanes for the scores of a segment to fit in memory."""
    tgt_len, span = lm.evaluation.tgt_len, lm.span
    n_scores = lm.config.n_head * tgt_len * (span.mem_len + tgt_len)
    n_segments = -(-min(n_targets, len(split) - 1) // tgt_len)
    n_lanes = max(1, min(lm.evaluation.eval_batch_size, _MAX_SCORES // n_scores, n_segments))
    warm_len = choose_warm_len(span.mem_len)
    return EvaluationLanes(split, n_lanes=n_lanes, tgt_len=tgt_len, warm_len=warm_len)


def count_segments(lanes: EvaluationLanes, n_targets: int) -> int:
    """Returns the number of segments to read, including those that warm up the lanes."""
    return min(lanes.n_warm + -(-n_targets // (lanes.n_lanes * lanes.tgt_len)), len(lanes))


@explain_full_memory("to average the attention: try fewer lanes, or a smaller tgt_len or mem_len")
def average_attention(
    lm: LanguageModel,
    lanes: EvaluationLanes,
    *,
    n_targets: int,
    jit: str = "none",
    report: Callable[[int], object] = lambda n_segments: None,
) -> AttentionAverages:
    """Averages the attention over the targets of a split, by distance.

    Only the sums are kept, in float64, so the memory used does not depend on the number of targets.
    This number is rounded up to whole segments of all lanes, which come from `cut_attention_lanes`.
    `report` is called with 1 after each segment.
    """
    span, tgt_len = lm.span, lm.evaluation.tgt_len
    resets = lm.evaluation.reset_at_documents
    reader = AttentionReader(lm, sum_by_distance, resets=resets, jit=jit)
    segments = lanes.read(0, count_segments(lanes, n_targets))
    n_read, n_keys = 0, span.mem_len + tgt_len
    total = np.zeros((lm.config.n_layer, 1 + len(TERMS), lm.config.n_head, n_keys))
    for segment, sums in reader.read(segments, n_warm=lanes.n_warm):
        if sums is not None:
            total += np.stack(sums)
            n_read += int(segment.mask.sum())
        report(1)
    n_distances = span.mem_len + 1 - span.counts_self if span.same_length else n_keys
    weights, *terms = np.moveaxis(total / n_read, 1, 0)[..., :n_distances]
    return AttentionAverages(n_read, tgt_len, weights, dict(zip(TERMS, terms, strict=True)))


def sum_by_distance(_: int, attention: LayerAttention, segment: Segment) -> tf.Tensor:
    """Returns the sums over the targets of a segment by distance, (1 + 4, N, S) float32.

    They are sums of the weights, and of each term alone, passed through its own softmax. Keys that
    are not tokens are left out.
    """
    is_counted = tf.logical_and(segment.mask[:, None, :, None], attention.is_token)  # (B, 1, T, S)
    alone = [
        tf.nn.softmax(tf.where(attention.mask, term, MASKED_SCORE)) for term in attention.terms
    ]
    sums = []
    for weights in (attention.weights, *alone):
        by_key = tf.reduce_sum(tf.where(is_counted, weights, 0.0), axis=0)  # (N, T, S)
        # In reverse, the columns of row i are the distances from i + 1 - T on. The shift moves
        # distance 0 to column 0. The entries shifted in belong to keys after the query, and are 0.
        by_distance = left_shift(tf.reverse(by_key, axis=[-1]))
        sums.append(tf.reduce_sum(by_distance, axis=1))
    return tf.stack(sums)
