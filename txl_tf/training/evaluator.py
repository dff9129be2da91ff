"""Evaluation: every token of a split is scored once."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from txl_tf.cached_model import CachedMemory, CachedModel
from txl_tf.config import AttentionSpan, EvalConfig
from txl_tf.data.evaluation_lanes import EvaluationLanes, Segment
from txl_tf.data.lanes import Tokens
from txl_tf.model import TransformerXL
from txl_tf.training.files import explain_full_memory


def compute_perplexity(nats: float) -> float:
    """Returns e to a mean loss, and to 700 at the most: `math.exp` raises from 710 on.

    >>> compute_perplexity(0.0)
    1.0
    """
    return math.exp(min(nats, 700.0))


class Score(NamedTuple):
    """The loss of a text.

    Args:
        nats: sum of -log p over the tokens.
        tokens: how many were scored.
    """

    nats: float
    tokens: int

    @property
    def nats_per_token(self) -> float:
        """Mean loss."""
        return self.nats / self.tokens

    @property
    def bpc(self) -> float:
        """Bits per token; a character or a byte where these are the tokens."""
        return self.nats_per_token / math.log(2)

    @property
    def perplexity(self) -> float:
        """E to the mean loss."""
        return compute_perplexity(self.nats_per_token)


def choose_warm_len(span: AttentionSpan) -> int:
    """Returns how much text before a lane warms it well enough: four memories.

    A state of layer n depends on n memories of text, so n_layer of them are exact. What lies more
    than four back changed the mean loss by less than 1e-5 nats in the worst of all cases that were
    measured: docs/evaluation.md.
    """
    return 4 * span.mem_len


Report = Callable[[int, int, Score], None]


class Evaluator:
    """Scores splits: all tokens but the first, which has no context, once each.

    A split is cut into lanes, read in step with memory carried, as keys and values; the last
    segments are padded, and the padding is not counted. Each lane starts with an empty memory, so
    fewer lanes give a slightly lower loss, unless the lanes are warmed. It runs on one device.

    With `reset_at_documents` a document sees nothing of the one before it. The first token of a
    document is still a target, of the last token of the document before: all but the split's
    first count once.

    Args:
        model: the model; its weights may change between two scores.
        config: lanes, segment and span.
        jit_compile: whether XLA compiles the step.
    """

    def __init__(self, model: TransformerXL, config: EvalConfig, *, jit_compile: bool = False):
        self.model = model
        self.config = config
        self._cached = CachedModel(model, config.span)
        self._project_positions = tf.function(
            lambda: self._cached.project_positions(config.tgt_len), autograph=False
        )
        self._score_segment = tf.function(
            self._compute_nats, jit_compile=jit_compile, autograph=False
        )

    def cut_lanes(
        self, split: Tokens, *, warm_len: int = 0, drop_rest: bool = False
    ) -> EvaluationLanes:
        """Cuts a split into the lanes and segments of the config; see `EvaluationLanes`."""
        config = self.config
        return EvaluationLanes(
            split,
            n_lanes=config.eval_batch_size,
            tgt_len=config.tgt_len,
            warm_len=warm_len,
            drop_rest=drop_rest,
        )

    def score(
        self,
        split: Tokens,
        *,
        max_segments: int | None = None,
        report: Report | None = None,
    ) -> Score:
        """Scores a split, in lanes that start with an empty memory.

        Args:
            split: its tokens.
            max_segments: as `score_lanes`.
            report: as `score_lanes`.

        Returns:
            The `Score`; its tokens are those of the split less one, unless `max_segments` cut it.

        Raises:
            UserError: the split has fewer than 2 tokens.
        """
        return self.score_lanes(self.cut_lanes(split), max_segments=max_segments, report=report)

    def score_lanes(
        self,
        lanes: EvaluationLanes,
        *,
        max_segments: int | None = None,
        report: Report | None = None,
    ) -> Score:
        """Scores lanes.

        Args:
            lanes: as `cut_lanes` makes them.
            max_segments: stop after so many segments of each lane that count; `None` for all.
            report: called after each segment with the segments done, those that warm the lanes
                among them; with their number; and with the score so far.

        Returns:
            The `Score`.

        Raises:
            UserError: the device's memory is full.
        """
        with explain_full_memory(
            "to evaluate so: try fewer lanes, or a smaller tgt_len or mem_len"
        ):
            return self._score_lanes(lanes, max_segments, report)

    def _score_lanes(
        self, lanes: EvaluationLanes, max_segments: int | None, report: Report | None
    ) -> Score:
        n_segments = len(lanes)
        if max_segments is not None:
            n_segments = min(lanes.n_warm + max_segments, n_segments)
        positions = self._project_positions()
        memory = self._cached.initial_memory(lanes.n_lanes)
        score = Score(0.0, 0)
        for index, segment in enumerate(itertools.islice(lanes, n_segments)):
            if index and segment.begins.any():
                memory = memory.reset(tf.constant(segment.begins))
            tensors = Segment(*map(tf.constant, segment))
            nats, memory = self._score_segment(tensors, memory, positions)
            score = Score(score.nats + float(nats), score.tokens + int(segment.mask.sum()))
            if report:
                report(index + 1, n_segments, score)
        return score

    def _compute_nats(
        self, segment: Segment, memory: CachedMemory, positions: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, CachedMemory]:
        """Returns the sum of the losses of a segment, () float64, and the new memory."""
        starts = segment.document_starts if self.config.reset_at_documents else None
        hidden, memory = self._cached.read(segment.ids, memory, positions, document_starts=starts)
        nats = tf.where(segment.mask, self.model.nll(hidden, segment.targets), 0.0)
        return tf.reduce_sum(tf.cast(nats, tf.float64)), memory
