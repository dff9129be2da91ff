"""The attention by distance, averaged over the targets of a split (paper, appendix D)."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.cached_model import CachedModel, CachedState
from txl_tf.compilation import compile_function
from txl_tf.config import EvalConfig, ModelConfig
from txl_tf.data.lanes.evaluation_lanes import EvaluationLanes, Segment
from txl_tf.data.lanes.training_lanes import Tokens
from txl_tf.experiments.attention_terms import TERMS, LayerAttention, read_attention
from txl_tf.layers import left_shift
from txl_tf.layers.relative_attention import MASKED_SCORE
from txl_tf.model import TransformerXL
from txl_tf.runs.files import explain_full_memory
from txl_tf.scoring.evaluator import choose_warm_len

# The scores of a layer that are held at a time, if a segment of one lane has no more.
_MAX_SCORES = 2**24
_ADVICE = "to average the attention: try fewer lanes, or a smaller tgt_len or mem_len"


class AttentionAverages(NamedTuple):
    """The mean attention of each head by distance: column d is the token d before the last one.

    The last token that was read, from which the target is predicted, has distance 0.

    Args:
        n_targets: The number of targets.
        tgt_len: The segment length T.
        weights: (L, N, distances) float64, the mean attention weights (figure 5).
        terms: The same for each term of the scores alone, through a softmax of its own, by its
            letter in the paper: "a", "b", "c" and "d" (figure 7).
    """

    n_targets: int
    tgt_len: int
    weights: np.ndarray
    terms: dict[str, np.ndarray]

    @property
    def empty(self) -> np.ndarray:
        """(L, N), the mean weight on the empty memory and, if they are reset, other documents."""
        return np.maximum(1 - self.weights.sum(axis=-1), 0)

    @property
    def mean_distance(self) -> np.ndarray:
        """(L, N), the mean distance of the tokens that are attended to."""
        distances = np.arange(self.weights.shape[-1])
        return self.weights @ distances / self.weights.sum(axis=-1)

    @property
    def beyond_segment(self) -> np.ndarray:
        """(L, N), the share at distances of T and more, which nothing sees without a memory."""
        far = self.weights[..., self.tgt_len :].sum(axis=-1)
        return far / self.weights.sum(axis=-1)

    def find_distance(self, share: float) -> np.ndarray:
        """Returns the smallest distances (L, N) up to which tokens receive a share of the weight.

        Args:
            share: The share, above 0 and below 1.
        """
        sums = np.cumsum(self.weights, axis=-1)
        return np.argmax(sums >= share * sums[..., -1:], axis=-1)


def cut_attention_lanes(
    config: ModelConfig, evaluation: EvalConfig, split: Tokens, *, n_targets: int
) -> EvaluationLanes:
    """Cuts a split into few enough lanes for the scores of a segment to fit in memory.

    Args:
        config: The config of the model.
        evaluation: Segment, span, and the largest number of lanes.
        split: The tokens of the split.
        n_targets: The number of targets that will be read, which needs no more lanes than segments.

    Raises:
        UserError: If the split has fewer than 2 tokens.
    """
    tgt_len, span = evaluation.tgt_len, evaluation.span
    n_scores = config.n_head * tgt_len * (span.mem_len + tgt_len)
    n_segments = -(-min(n_targets, len(split) - 1) // tgt_len)
    n_lanes = max(1, min(evaluation.eval_batch_size, _MAX_SCORES // n_scores, n_segments))
    warm_len = choose_warm_len(span.mem_len)
    return EvaluationLanes(split, n_lanes=n_lanes, tgt_len=tgt_len, warm_len=warm_len)


@explain_full_memory(_ADVICE)
def average_attention(
    model: TransformerXL,
    evaluation: EvalConfig,
    lanes: EvaluationLanes,
    *,
    n_targets: int,
    jit: str = "none",
    report: Callable[[int, int], object] = lambda done, total: None,
) -> AttentionAverages:
    """Averages the attention over the targets of a split, by distance.

    Only the sums are kept, in float64, so the memory does not depend on the number of targets.

    Args:
        model: The model.
        evaluation: Segment and span.
        lanes: The lanes of the split, from `cut_attention_lanes`.
        n_targets: The number of targets, rounded up to whole segments of all lanes; at most all of
            the split count.
        jit: How much of a step XLA compiles; one of `JIT_MODES`.
        report: Called after each segment with the number of segments done and their total.

    Raises:
        UserError: If the device's memory is full.
    """
    cached = CachedModel(model, evaluation.span, evaluation.tgt_len)
    resets = evaluation.reset_at_documents

    def get_starts(segment: Segment) -> tf.Tensor | None:
        return segment.document_starts if resets else None

    def warm(segment: Segment, state: CachedState) -> CachedState:
        return cached.read(segment.ids, state, document_starts=get_starts(segment))[1]

    def add(segment: Segment, state: CachedState) -> tuple[tf.Tensor, CachedState]:
        def sum_up(layer: int, attention: LayerAttention) -> tf.Tensor:
            return sum_by_distance(attention, segment.mask)

        sums, _, state = read_attention(cached, segment.ids, state, sum_up, get_starts(segment))
        return tf.stack(sums), state  # (L, 1 + 4, N, S)

    warm_step, add_step = (compile_function(step, jit, model.compute_dtype) for step in (warm, add))
    n_segments = -(-n_targets // (lanes.n_lanes * lanes.tgt_len))
    n_steps = min(lanes.n_warm + n_segments, len(lanes))
    state, n_read = cached.initial_state(lanes.n_lanes), 0
    config, span = model.config, evaluation.span
    n_keys = span.mem_len + evaluation.tgt_len
    total = np.zeros((config.n_layer, 1 + len(TERMS), config.n_head, n_keys))
    for index, segment in zip(range(n_steps), lanes, strict=False):
        if index and segment.begins.any():
            state = state.reset(tf.constant(segment.begins))
        tensors = Segment(*map(tf.constant, segment[:5]))  # the arrays
        if index < lanes.n_warm:
            state = warm_step(tensors, state)
        else:
            sums, state = add_step(tensors, state)
            total += sums.numpy()
            n_read += int(segment.mask.sum())
        report(index + 1, n_steps)
    n_distances = span.mem_len + 1 - span.counts_self if span.same_length else n_keys
    weights, *terms = np.moveaxis(total / n_read, 1, 0)[..., :n_distances]
    return AttentionAverages(
        n_read, evaluation.tgt_len, weights, dict(zip(TERMS, terms, strict=True))
    )


def sum_by_distance(attention: LayerAttention, counts: tf.Tensor) -> tf.Tensor:
    """Returns the attention of a segment by distance, summed over its targets.

    Args:
        attention: The attention of a layer.
        counts: (B, T) bool, true where the target of a query counts.

    Returns:
        (1 + 4, N, S) float32, for the weights and for each term alone, through a softmax of its
        own. Keys that are no token are left out.
    """
    is_counted = tf.logical_and(counts[:, None, :, None], attention.is_token)  # (B, 1, T, S)
    alone = [
        tf.nn.softmax(tf.where(attention.mask, term, MASKED_SCORE)) for term in attention.terms
    ]
    sums = []
    for weights in (attention.weights, *alone):
        by_key = tf.reduce_sum(tf.where(is_counted, weights, 0.0), axis=0)  # (N, T, S)
        # From the last key back, the columns of row i are the distances from i + 1 - T on. The
        # shift moves distance 0 to column 0; what becomes free was after the query, and is 0.
        by_distance = left_shift(tf.reverse(by_key, axis=[-1]))
        sums.append(tf.reduce_sum(by_distance, axis=1))
    return tf.stack(sums)
