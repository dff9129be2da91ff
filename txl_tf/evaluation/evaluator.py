"""Evaluation: every token of a split is scored once."""

import itertools
from collections.abc import Callable

import tensorflow as tf

from txl_tf.cached_model import CachedModel, CachedState
from txl_tf.config import AttentionSpan, EvalConfig
from txl_tf.data.evaluation_lanes import EvaluationLanes, Segment
from txl_tf.data.lanes import Tokens
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.evaluation.score import Score
from txl_tf.model import TransformerXL
from txl_tf.runs.files import explain_full_memory


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
    segments are padded, and the padding is not counted. By default each lane is warmed by the text
    before it: cold lanes, which start with an empty memory, give a slightly higher loss. It runs
    on one device.

    With `reset_at_documents` a document sees nothing of the one before it. The first token of a
    document is still a target, of the last token of the document before: all but the split's
    first count once.

    Args:
        model: the model; its weights may change between two scores.
        config: lanes, segment and span.
        vocabulary: of the splits, for the unit of the scores and their unknown tokens; `None` if
            only ids are known.
        jit_compile: whether XLA compiles the step.
    """

    def __init__(
        self,
        model: TransformerXL,
        config: EvalConfig,
        *,
        vocabulary: Vocabulary | None = None,
        jit_compile: bool = False,
    ):
        self.model = model
        self.config = config
        self.vocabulary = vocabulary
        self._cached = CachedModel(model, config.span, config.tgt_len)
        self._score_segment = tf.function(
            self._compute_nats, jit_compile=jit_compile, autograph=False
        )

    def cut_lanes(
        self, split: Tokens, *, warm_len: int | None = None, drop_rest: bool = False
    ) -> EvaluationLanes:
        """Cuts a split into the lanes and segments of the config: the one way to count of all.

        Args:
            split: its tokens.
            warm_len: tokens of the text before each lane that are read first, as many as there
                are; `None` for `choose_warm_len`, or for none with `drop_rest`.
            drop_rest: cut as the 2019 release; see `EvaluationLanes`.

        Returns:
            The lanes, at most one for each segment: more would be empty.

        Raises:
            UserError: the split has fewer than 2 tokens, or with `drop_rest` fewer for each lane.
        """
        config, n_lanes = self.config, self.config.eval_batch_size
        if warm_len is None:
            warm_len = 0 if drop_rest else choose_warm_len(config.span)
        if not drop_rest:
            n_segments = -(-(len(split) - 1) // config.tgt_len)
            n_lanes = max(1, min(n_lanes, n_segments))
        return EvaluationLanes(
            split,
            n_lanes=n_lanes,
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
        """Scores a split, in the lanes that `cut_lanes` makes by default.

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
        self._cached.follow_weights()
        state = self._cached.initial_state(lanes.n_lanes)
        score, unknown_id = self._make_empty_score()
        for index, segment in enumerate(itertools.islice(lanes, n_segments)):
            if index and segment.begins.any():
                state = state.reset(tf.constant(segment.begins))
            tensors = Segment(*map(tf.constant, segment))
            nats, state = self._score_segment(tensors, state)
            targets = segment.targets[segment.mask]
            score = score.add(float(nats), len(targets), int((targets == unknown_id).sum()))
            if report:
                report(index + 1, n_segments, score)
        return score

    def _make_empty_score(self) -> tuple[Score, int]:
        """Returns the score of no token, and the id of unknown tokens; -1 if there is none."""
        if self.vocabulary is None:
            return Score(0.0, 0), -1
        unknown_id = self.vocabulary.unknown_id
        return Score(0.0, 0, self.vocabulary.level, 0), -1 if unknown_id is None else unknown_id

    def _compute_nats(self, segment: Segment, state: CachedState) -> tuple[tf.Tensor, CachedState]:
        """Returns the sum of the losses of a segment, () float64, and the new state."""
        starts = segment.document_starts if self.config.reset_at_documents else None
        nats, state = self._cached.score(
            segment.ids, segment.targets, state, document_starts=starts
        )
        nats = tf.where(segment.mask, nats, 0.0)
        return tf.reduce_sum(tf.cast(nats, tf.float64)), state
