"""Evaluation: every token of a split is scored once."""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from txl_tf.config import EvalConfig
from txl_tf.data.lanes import EvaluationLanes, Segment, Tokens
from txl_tf.model import TransformerXL
from txl_tf.training.step import Memory


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
        return math.exp(min(self.nats_per_token, 700.0))


class Evaluator:
    """Scores splits: all tokens but the first, which has no context, once each.

    A split is cut into lanes, read in step with memory carried; the last segments are padded, and
    the padding is not counted. Each lane starts with an empty memory, so fewer lanes give a
    slightly lower loss. It runs on one device.

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
        self._score_segment = tf.function(
            self._compute_nats, jit_compile=jit_compile, autograph=False
        )

    def score(
        self,
        split: Tokens,
        *,
        max_segments: int | None = None,
        report: Callable[[int, int, Score], None] | None = None,
    ) -> Score:
        """Scores a split.

        Args:
            split: its tokens.
            max_segments: stop after so many segments of each lane; `None` for all.
            report: called after each segment with the segments done, their number, and the
                score so far.

        Returns:
            The `Score`; its tokens are those of the split less one, unless `max_segments` cut it.

        Raises:
            UserError: the split has fewer than 2 tokens.
        """
        config = self.config
        lanes = EvaluationLanes(split, n_lanes=config.eval_batch_size, tgt_len=config.tgt_len)
        n_segments = len(lanes) if max_segments is None else min(max_segments, len(lanes))
        memory = self.model.initial_memory(config.eval_batch_size, config.mem_len)
        score = Score(0.0, 0)
        for index, segment in enumerate(itertools.islice(lanes, n_segments)):
            nats, memory = self._score_segment(Segment(*map(tf.constant, segment)), memory)
            score = Score(score.nats + float(nats), score.tokens + int(segment.mask.sum()))
            if report:
                report(index + 1, n_segments, score)
        return score

    def _compute_nats(self, segment: Segment, memory: Memory) -> tuple[tf.Tensor, Memory]:
        """Returns the sum of the losses of a segment, () float64, and the new memory."""
        starts = segment.document_starts if self.config.reset_at_documents else None
        hidden, memory = self.model(
            segment.ids, memory, span=self.config.span, training=False, document_starts=starts
        )
        nats = tf.where(segment.mask, self.model.nll(hidden, segment.targets), 0.0)
        return tf.reduce_sum(tf.cast(nats, tf.float64)), memory
