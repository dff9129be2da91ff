"""The evaluator, which scores every token of a split once, with teacher forcing."""

from collections.abc import Callable

import numpy as np

from txl_tf.config import EvalConfig, ModelConfig
from txl_tf.data.lanes.evaluation_lanes import EvaluationLanes, SlidingWindows
from txl_tf.data.lanes.training_lanes import Tokens
from txl_tf.data.records.reading import Records
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.models.compilation import explain_full_memory
from txl_tf.models.segment_model import SegmentModel
from txl_tf.scoring.metrics import Score, sum_losses
from txl_tf.scoring.segment_loop import FrozenReader, Reader, score_segments

_ADVICE = "for this evaluation: try fewer lanes, or a smaller tgt_len or mem_len"


def choose_warm_len(reach: int) -> int:
    """Returns the number of tokens that suffice to warm up a lane: four times `FrozenModel.reach`.

    A state of layer n depends on n memory lengths of text, so n_layer memory lengths would be exact
    (each rounded up to whole segments without `same_length`). In the worst measured case, text more
    than four memory lengths back changed the mean loss by less than 1e-5 nats (docs/evaluation.md).
    """
    return 4 * reach


def check_records(records: Records, model: ModelConfig, config: EvalConfig, split: str) -> None:
    """Checks that a split exists and fits a model and an evaluation config."""
    if records.n_token != model.n_token:
        raise UserError(
            f"the model has {model.n_token} symbols; the records in {records.data_dir} have "
            f"{records.n_token}"
        )
    records.split(split)  # raises if there is none
    if config.reset_at_documents:
        check_documents(records, split)


def check_documents(records: Records, split: str) -> None:
    """Checks that a split exists and has document boundaries."""
    records.split(split)  # raises if there is none
    if not records.n_documents(split):
        raise UserError(
            "`reset_at_documents` needs a data set with document boundaries; "
            f"{records.data_dir} has none in split {split}"
        )


def describe_evaluation(config: EvalConfig, lanes: EvaluationLanes | None = None) -> str:
    """Returns the settings of an evaluation as text, and how lanes start, if known.

    >>> describe_evaluation(EvalConfig(80, 2100, clamp_len=820, eval_batch_size=2))
    'tgt_len 80, mem_len 2100, same_length false, clamp_len 820, 2 lanes'
    """
    n_lanes = config.eval_batch_size
    counting = lanes.describe() if lanes is not None else f"{n_lanes} lane{'s' * (n_lanes > 1)}"
    return f"{config.describe()}, {counting}"


class Evaluator:
    """Scores every token of a split once, except the first, which has no context.

    A split is cut into lanes that are read in parallel, and the memory is carried as keys and
    values (a KV cache). The last segments are padded, and padding does not count. By default, each
    lane is warmed up with the text before it: cold lanes, which start with an empty memory, give a
    slightly higher loss. The evaluator runs on one device.

    With `reset_at_documents`, a document sees nothing of the previous one. The first token of a
    document is still the target of the previous document's last token, so the same tokens count.

    In the 2019 code: `evaluate` of train_gpu.py.

    Args:
        model: The model. Its weights may change between two evaluations.
        config: The number of lanes, the segment length and the span.
        vocabulary: The vocabulary of the splits, which determines the unit of the scores and the
            unknown tokens; `None` if only ids are known.
        jit: How much of the step XLA compiles; one of `JIT_MODES`.
        reader: The reader; `None` for one with fixed weights. With an `AdaptingReader`, the weights
            take a step on the mean loss over all lanes after each segment has been scored (dynamic
            evaluation), so more lanes take fewer steps and give a different score.
    """

    def __init__(
        self,
        model: SegmentModel,
        config: EvalConfig,
        *,
        vocabulary: Vocabulary | None = None,
        jit: str = "none",
        reader: Reader | None = None,
    ):
        self.model = model
        self.config = config
        self.vocabulary = vocabulary
        self.frozen = FrozenReader(model, config, jit=jit)
        self.reader: Reader = reader or self.frozen

    def cut_lanes(
        self,
        split: Tokens,
        *,
        warm_len: int | None = None,
        drop_rest: bool = False,
        stride: int | None = None,
    ) -> EvaluationLanes:
        """Cuts a split into the lanes and segments of the config, for every kind of evaluation.

        Args:
            split: The tokens of the split.
            warm_len: The number of tokens before each lane that warm it up, as far as there are so
                many; `None` for `choose_warm_len`, or for 0 with `drop_rest`.
            drop_rest: Whether to cut as the 2019 release does; see `EvaluationLanes`.
            stride: The stride of `SlidingWindows` of `tgt_len` tokens, which are read without
                memory; `None` for lanes.

        Returns:
            The lanes, at most one for each segment: more would be empty.

        Raises:
            UserError: If the split has fewer than 2 tokens, or with `drop_rest` fewer than 2 per
                lane; or if `stride` is larger than `tgt_len`, or combined with a memory, dynamic
                evaluation, `warm_len` or `drop_rest`.
        """
        config, n_lanes = self.config, self.config.eval_batch_size
        if stride is not None:
            if config.mem_len:
                raise UserError(
                    "`stride` needs a `mem_len` of 0: sliding windows read no memory. "
                    f"Received: mem_len={config.mem_len}"
                )
            if self.reader.dynamic:
                raise UserError("dynamic evaluation reads a text once: it cannot use `stride`")
            if warm_len or drop_rest:
                raise UserError(
                    "`warm_len` and `drop_rest` are for lanes, not for `stride`. "
                    f"Received: warm_len={warm_len}, drop_rest={drop_rest}"
                )
            return SlidingWindows(split, n_lanes=n_lanes, tgt_len=config.tgt_len, stride=stride)
        if warm_len is None:
            warm_len = 0 if drop_rest else choose_warm_len(self.frozen.cached.reach)
        if not drop_rest:
            n_segments = -(-(len(split) - 1) // config.tgt_len)
            n_lanes = max(1, min(n_lanes, n_segments))
        return EvaluationLanes(
            split, n_lanes=n_lanes, tgt_len=config.tgt_len, warm_len=warm_len, drop_rest=drop_rest
        )

    def score(self, split: Tokens) -> Score:
        """Scores a split in the default lanes of `cut_lanes`; see `score_lanes`."""
        return self.score_lanes(self.cut_lanes(split))

    @explain_full_memory(_ADVICE)
    def score_lanes(
        self,
        lanes: EvaluationLanes,
        *,
        max_segments: int | None = None,
        report: Callable[[int, int, Score], None] | None = None,
    ) -> Score:
        """Scores lanes.

        Args:
            lanes: Lanes made by `cut_lanes`.
            max_segments: The number of segments of each lane to score, not counting those that warm
                it up; `None` for all.
            report: Called after each segment with the number of segments done and their total
                number, both including those that warm up the lanes, and with the score so far.

        Raises:
            UserError: If the device runs out of memory, or the weights diverge in dynamic
                evaluation.
        """
        n_segments = len(lanes)
        if max_segments is not None:
            n_segments = min(lanes.n_warm + max_segments, n_segments)
        segments = lanes.read(0, n_segments)
        if not self.config.reset_at_documents:
            segments = (segment._replace(document_starts=None) for segment in segments)
        score = sum_losses(np.zeros(0), np.zeros(0), self.vocabulary)
        for done, (segment, nats) in enumerate(score_segments(self.reader, segments), 1):
            score += sum_losses(nats[segment.mask], segment.targets[segment.mask], self.vocabulary)
            if report:
                report(done, n_segments, score)
        return score
