"""Scorers of streams of texts of any length."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import numpy as np

from txl_tf.config import EvalConfig
from txl_tf.data.lanes.evaluation_lanes import Segment
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import check_integer
from txl_tf.models.compilation import explain_full_memory
from txl_tf.models.segment_model import SegmentModel
from txl_tf.scoring.segment_loop import FrozenReader, Reader
from txl_tf.scoring.text_chunks import TextChunk, TextName
from txl_tf.scoring.text_scores import TextTotals
from txl_tf.scoring.text_streams import Text, TextStream

SCORING_BATCH_SIZE = 16
_MAX_SCORES = 16 * 512**2  # of a head, in a segment that is read without memory
_LEAST_TOKENS = 320  # in a segment, over all rows: fewer would leave cores idle
_ADVICE = "to score the texts: try a smaller batch size, or a smaller tgt_len or mem_len"


class TextScorer:
    """Scores streams of texts. A stream starts with an empty memory and carries it to its end.

    Each row of a batch reads a stream, segment by segment. When the stream ends, the row clears its
    memory and takes the next stream (continuous batching). Streams may therefore have any length,
    only their next tokens are held in memory, and they do not affect each other's scores, except
    for rounding. With a reader whose weights learn, each stream starts from the model's weights,
    and the batch size must be 1.
    """

    def __init__(self, reader: Reader, tgt_len: int, *, batch_size: int):
        check_integer("batch_size", batch_size, 1)
        self.reader = reader
        self._tgt_len = tgt_len
        self._batch_size = batch_size
        self._n_ahead = tgt_len  # inputs of each stream to load before a shape is chosen

    def score(
        self,
        streams: Iterable[Iterable[TextChunk]],
        *,
        prefix: Sequence[int] | np.ndarray = (),
        vocabulary: Vocabulary | None = None,
        keep_tokens: bool = True,
        report: Callable[[int], object] = lambda n_tokens: None,
    ) -> Iterator[tuple[TextName, TextTotals]]:
        """Scores texts.

        Args:
            streams: The chunks of texts in each stream, which are consumed as needed. The memory is
                carried from each text of a stream to the next.
            prefix: (p,) ids that are read before each stream and not scored.
            vocabulary: The vocabulary, to count unknown tokens; `None` if only ids are known.
            keep_tokens: Whether to yield a `TextScore`, with ids and losses, instead of
                `TextTotals`.
            report: Called after each segment with the number of tokens read.

        Yields:
            The name and the score of each text, in order.
        """

        def make_text(name: TextName | None) -> Text:
            return Text(name, vocabulary, keep_tokens and name is not None)

        before = [TextChunk(np.asarray(prefix, np.int32), None, None, (0, 0), None)]
        waiting = iter(streams)
        opened: deque[TextStream] = deque()  # in order, while their scores are not all yielded
        rows: list[TextStream | None] = [None] * self._batch_size
        state = None
        self.reader.begin()
        while True:
            # 1) Rows without a stream take the next ones.
            while None in rows and (chunks := next(waiting, None)) is not None:
                chunks = chain(before if len(prefix) else [], chunks)
                opened.append(TextStream(chunks, make_text, self._n_ahead))
                if not opened[-1].is_done:
                    rows[rows.index(None)] = opened[-1]
                yield from _pop_scores(opened)
            active = [stream for stream in rows if stream is not None]
            if not active:
                return
            # 2) Each reads a segment. With no streams left to take, the batch shrinks.
            n_rows, tgt_len, uses_memory = self._choose_shape(active)
            sources = None
            if n_rows < len(rows):
                sources = [row for row, stream in enumerate(rows) if stream is not None]
                rows = [*active, *[None] * (n_rows - len(active))]
                sources += [0] * (n_rows - len(active))
            segment = _make_segment(rows, tgt_len)
            segment = segment._replace(sources=sources, uses_memory=uses_memory)
            with explain_full_memory(_ADVICE):
                nats, state = self.reader.read(segment, state)
            # 3) Streams give the losses to their texts.
            for row, stream in enumerate(rows):
                if stream is not None:
                    stream.read(nats[row, segment.mask[row]])
                    if stream.is_done:
                        rows[row] = None
            report(int(segment.mask.sum()))
            yield from _pop_scores(opened)

    def _choose_shape(self, streams: Sequence[TextStream]) -> tuple[int, int, bool]:
        """Returns the shape of the next segment, (B, T), and whether it is read with memory."""
        return len(streams), self._tgt_len, True


class Scorer(TextScorer):
    """Scores streams of texts with a model that does not change.

    A stream of more than T tokens is cut into segments of T, as in evaluation. Two shortcuts are
    faster and give the same results. If all streams of a batch end within one shorter or longer
    segment, they are read in that segment, without memory where possible. And with `same_length`,
    few streams are read in longer segments.

    Args:
        model: The model. Its weights must not change during a call.
        config: The segment length T, the span and the temperature. Without `same_length`, T
            determines how much context the first tokens of a segment see; otherwise it affects only
            the speed.
        batch_size: Maximum number of streams B to read at once; fewer streams use smaller batches.
        mask_empty_memory: See `CachedModel`.
        jit: How much of the step XLA compiles, once for each shape; one of `JIT_MODES`.

    Raises:
        UserError: If `batch_size` is not positive, or the model does not support the config.
    """

    reader: FrozenReader

    def __init__(
        self,
        model: SegmentModel,
        config: EvalConfig,
        *,
        batch_size: int = SCORING_BATCH_SIZE,
        mask_empty_memory: bool = True,
        jit: str = "auto",
    ):
        self._config = config
        max_len = _choose_len(config, 1)
        reader = FrozenReader(
            model, config, max_len=max_len, mask_empty_memory=mask_empty_memory, jit=jit
        )
        super().__init__(reader, config.tgt_len, batch_size=batch_size)
        self._n_ahead = max(max_len, self._limit_whole(1))

    def _choose_shape(self, streams: Sequence[TextStream]) -> tuple[int, int, bool]:
        """Returns one of a few shapes, each of which is compiled; see `TextScorer`.

        B is 1, 4, 16, ..., or the batch size. T is that of the config, longer for few rows, or, for
        streams that end within the segment, 16, 32, 64, ..., T, 2 T, 4 T, ...
        """
        # The steps of B are larger, as rows are padded only at the end of a call.
        n_rows = _round_up(len(streams), 1, 4, self._batch_size)
        counts = [stream.n_inputs for stream in streams]
        if all(stream.is_fresh and stream.is_ended for stream in streams):
            whole_len = _round_up(max(counts), 16, 2, self._tgt_len)
            while whole_len < max(counts):
                whole_len *= 2
            if whole_len <= self._tgt_len or self._is_worth_padding(counts, n_rows, whole_len):
                return n_rows, whole_len, whole_len > self.reader.cached.max_len_without_memory
        return n_rows, _choose_len(self._config, n_rows), True

    def _is_worth_padding(self, counts: Sequence[int], n_rows: int, whole_len: int) -> bool:
        """Returns whether one segment of more than T is faster than several that read the memory.

        The kernels of a layer cost a query about as much as 2 D keys.
        """
        cached, tgt_len = self.reader.cached, self._tgt_len
        dense = 2 * cached.model.config.d_model
        n_segments = sum(-(-count // tgt_len) for count in counts)
        in_one = n_rows * whole_len * (dense + whole_len)
        in_several = n_segments * tgt_len * (dense + cached.span.mem_len + tgt_len)
        return whole_len <= self._limit_whole(n_rows) and in_one <= in_several

    def _limit_whole(self, n_rows: int) -> int:
        """Returns the largest number of tokens to read at once without memory."""
        return min(self.reader.cached.max_len_without_memory, math.isqrt(_MAX_SCORES // n_rows))


def _choose_len(config: EvalConfig, n_rows: int) -> int:
    """Returns the length of segments that are read with memory, which is longer for few rows."""
    if not config.same_length:
        return config.tgt_len
    # Longer segments have larger products, but also more keys that most queries do not see; hence
    # at most a sixth of the memory.
    return max(config.tgt_len, min(_LEAST_TOKENS // n_rows, config.mem_len // 6))


def _round_up(n: int, first: int, factor: int, last: int) -> int:
    """Returns the smallest of `first`, `factor` `first`, ... that is at least `n`, or `last`.

    >>> [_round_up(n, 8, 4, 100) for n in (3, 8, 9, 33, 200)], _round_up(3, 8, 4, 5)
    ([8, 8, 32, 100, 100], 5)
    """
    while first < min(n, last):
        first *= factor
    return min(first, last)


def _make_segment(rows: Sequence[TextStream | None], tgt_len: int) -> Segment:
    """Returns the next segment of each row; rows without a stream are padding."""
    segment = Segment.make_empty(len(rows), tgt_len)
    counts = np.zeros(len(rows), np.int32)
    for row, stream in enumerate(rows):
        if stream is not None:
            known = stream.ids[: tgt_len + 1]
            counts[row] = count = len(known) - 1
            segment.ids[row, :count], segment.targets[row, :count] = known[:-1], known[1:]
            segment.mask[row, :count] = True
            segment.begins[row] = stream.is_fresh
    return segment._replace(document_starts=None, counts=counts)


def _pop_scores(opened: deque[TextStream]) -> Iterator[tuple[TextName, TextTotals]]:
    """Yields the available scores in the order of the streams, and removes finished streams."""
    while opened:
        while opened[0].scores:
            yield opened[0].scores.popleft()
        if not opened[0].is_done:
            return
        opened.popleft()
