"""The evaluator, which scores every token of a split once, with teacher forcing."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from txl_tf.architecture import make_cached_model
from txl_tf.cached_model import State
from txl_tf.compilation import compile_function, explain_full_memory
from txl_tf.config import EvalConfig
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.data.lanes.evaluation_lanes import EvaluationLanes, Segment
from txl_tf.data.lanes.sliding_windows import AnyLanes, SlidingWindows
from txl_tf.data.lanes.training_lanes import Tokens
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.model import SegmentModel
from txl_tf.scoring.metrics import Score


def choose_warm_len(reach: int) -> int:
    """Returns the number of tokens that warm a lane well enough: four times the reach.

    A state of layer n depends on n memory lengths of text, so n_layer of them are exact: with
    `same_length` as they are, otherwise each rounded up to whole segments. Text more than four
    memory lengths back changed the mean loss by less than 1e-5 nats in the worst case that was
    measured (docs/evaluation.md).

    Args:
        reach: The `SegmentReader.reach` of the model: the memory length of a Transformer-XL.
    """
    return 4 * reach


_ADVICE = "for this evaluation: try fewer lanes, or a smaller tgt_len or mem_len"

Report = Callable[[int, int, Score], None]


class Progress(NamedTuple):
    """An evaluation between two segments.

    Args:
        n_done: The number of segments that were read.
        state: The state that was carried to here.
        score: The score so far.
    """

    n_done: int
    state: Any
    score: Score


class Evaluator:
    """Scores every token of a split once, except the first, which has no context.

    A split is cut into lanes that are read in parallel, and the memory is carried as keys and
    values (a KV cache). The last segments are padded, and padding does not count. By default each
    lane is warmed by the text before it: cold lanes, which start with an empty memory, give a
    slightly higher loss. The evaluator runs on one device.

    With `reset_at_documents` a document sees nothing of the previous one. The first token of a
    document is still the target of the previous document's last token, so the same tokens count.

    Args:
        model: The model. Its weights may change between two evaluations.
        config: Lanes, segment and span.
        vocabulary: The vocabulary of the splits, which determines the unit of the scores and the
            unknown tokens; `None` if only ids are known.
        jit: How much of the step XLA compiles; one of `JIT_MODES`.
    """

    dynamic: DynamicConfig | None = None  # of a `DynamicEvaluator`
    n_resumed_tokens = 0  # that an interrupted evaluation had scored before

    def __init__(
        self,
        model: SegmentModel,
        config: EvalConfig,
        *,
        vocabulary: Vocabulary | None = None,
        jit: str = "none",
    ):
        self.model = model
        self.config = config
        self.vocabulary = vocabulary
        self._cached = make_cached_model(
            model,
            config.span,
            config.tgt_len,
            temperature=config.temperature,
            defer_products=True,  # each evaluation begins with those of its weights
        )
        self._compiled = compile_function(self._compute_nats, jit, model.compute_dtype)

    def cut_lanes(
        self,
        split: Tokens,
        *,
        warm_len: int | None = None,
        drop_rest: bool = False,
        stride: int | None = None,
    ) -> AnyLanes:
        """Cuts a split into the lanes and segments of the config, for every kind of evaluation.

        Args:
            split: The tokens of the split.
            warm_len: The number of tokens before each lane that warm it, if there are as many;
                `None` for `choose_warm_len`, or for 0 with `drop_rest`.
            drop_rest: Whether to cut as the 2019 release does; see `EvaluationLanes`.
            stride: The stride of `SlidingWindows` of `tgt_len` tokens, which are read without
                memory; `None` for lanes.

        Returns:
            The lanes, at most one for each segment: more would be empty.

        Raises:
            UserError: If the split has fewer than 2 tokens, or with `drop_rest` fewer than 2
                for each lane; or if there is a stride, and a memory or `same_length`.
        """
        config, n_lanes = self.config, self.config.eval_batch_size
        if stride is not None:
            if config.mem_len or config.same_length:
                raise UserError(
                    "`stride` needs a `mem_len` of 0 and no `same_length`: sliding windows read no "
                    f"memory. Received: mem_len={config.mem_len}, same_length={config.same_length}"
                )
            return SlidingWindows(split, n_lanes=n_lanes, tgt_len=config.tgt_len, stride=stride)
        if warm_len is None:
            warm_len = 0 if drop_rest else choose_warm_len(self._cached.reach)
        if not drop_rest:
            n_segments = -(-(len(split) - 1) // config.tgt_len)
            n_lanes = max(1, min(n_lanes, n_segments))
        return EvaluationLanes(
            split, n_lanes=n_lanes, tgt_len=config.tgt_len, warm_len=warm_len, drop_rest=drop_rest
        )

    def score(
        self, split: Tokens, *, max_segments: int | None = None, report: Report | None = None
    ) -> Score:
        """Scores a split in the default lanes of `cut_lanes`.

        Args:
            split: The tokens of the split.
            max_segments: As for `score_lanes`.
            report: As for `score_lanes`.

        Returns:
            The `Score`, of all tokens but the first unless `max_segments` limits it.

        Raises:
            UserError: If the split has fewer than 2 tokens, or the device's memory is full.
        """
        return self.score_lanes(self.cut_lanes(split), max_segments=max_segments, report=report)

    @explain_full_memory(_ADVICE)
    def score_lanes(
        self,
        lanes: AnyLanes,
        *,
        max_segments: int | None = None,
        report: Report | None = None,
    ) -> Score:
        """Scores lanes.

        Args:
            lanes: Lanes made by `cut_lanes`.
            max_segments: The number of counting segments of each lane to score; `None` for all.
            report: Called after each segment with the number of segments done, which includes
                those that warm the lanes, with the total number and with the score so far.

        Returns:
            The `Score`.

        Raises:
            UserError: If the device's memory is full.
        """
        n_segments = self._count_segments(lanes, max_segments)
        unknown_id = None if self.vocabulary is None else self.vocabulary.unknown_id
        progress = self._begin(lanes, n_segments)
        for index, segment in enumerate(lanes.read(progress.n_done, n_segments), progress.n_done):
            state, score = progress.state, progress.score
            if index and segment.begins.any():
                state = state.reset(tf.constant(segment.begins))
            nats, state = self._score_segment(Segment(*map(tf.constant, segment)), state)
            targets = segment.targets[segment.mask]
            n_unknown = 0 if unknown_id is None else int((targets == unknown_id).sum())
            score = score.add(float(nats), len(targets), n_unknown)
            progress = Progress(index + 1, state, score)
            if report:
                report(index + 1, n_segments, score)
            self._keep(progress)
        return progress.score

    def _count_segments(self, lanes: AnyLanes, max_segments: int | None) -> int:
        """Returns the number of segments to read, which includes those that warm the lanes."""
        if max_segments is None:
            return len(lanes)
        return min(lanes.n_warm + max_segments, len(lanes))

    def _begin(self, lanes: AnyLanes, n_segments: int) -> Progress:
        """Returns the progress before the first of the segments that are to be read."""
        self._cached.follow_weights()
        return Progress(0, self._cached.initial_state(lanes.n_lanes), self._make_empty_score())

    def _score_segment(self, segment: Segment, state: Any) -> tuple[tf.Tensor, Any]:
        """Returns the summed loss of a segment of tensors, () float64, and the new state."""
        return self._compiled(segment, state)

    def _keep(self, progress: Progress) -> None:
        """Is called after each segment; an evaluation that takes long may store its progress."""

    def _make_empty_score(self) -> Score:
        """Returns the score of no tokens."""
        if self.vocabulary is None:
            return Score(0.0, 0)
        return Score(0.0, 0, self.vocabulary.level, 0)

    def _compute_nats(self, segment: Segment, state: State) -> tuple[tf.Tensor, State]:
        """Returns the summed loss of a segment, () float64, and the new state."""
        starts = segment.document_starts if self.config.reset_at_documents else None
        nats, state = self._cached.score(
            segment.ids, segment.targets, state, document_starts=starts
        )
        nats = tf.where(segment.mask, nats, 0.0)
        return tf.reduce_sum(tf.cast(nats, tf.float64)), state
