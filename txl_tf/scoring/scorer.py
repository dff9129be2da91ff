"""Scorers of streams of texts of any length."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from txl_tf.config import AttentionSpan, EvalConfig, ModelConfig
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import check_integer
from txl_tf.models.cached_model import SegmentReader
from txl_tf.models.compilation import explain_full_memory
from txl_tf.models.segment_model import SegmentModel
from txl_tf.scoring.segment_loop import FrozenReader, Reader, score_segments
from txl_tf.scoring.text_chunks import TextChunk, TextName
from txl_tf.scoring.text_scores import Text, TextTotals
from txl_tf.scoring.text_streams import Shape, TextStream, cut_streams

SCORING_BATCH_SIZE = 16
# The compiled shapes: segments of 8, 32, 128, ..., T tokens and batches of 1, 4, 16, ..., B rows.
_MIN_TGT_LEN, _GROWTH = 8, 4
# Whole streams are read in segments of 2 T, 4 T, ..., too: at most so many scores for each head.
_MAX_SCORES = 16 * 512**2
# Small batches are read in longer segments: 320 tokens in all, at most M / 6 for each row.
_JOINED_TOKENS, _MEMORY_DIVISOR = 320, 6
_ADVICE = "to score the texts: try a smaller batch size, or a smaller tgt_len or mem_len"


class TextScorer:
    """Scores streams of texts. Each begins with an empty memory, which is carried to its end.

    Each row of a batch reads a stream, segment by segment. When the stream ends, the row clears its
    memory and takes the next stream (continuous batching). Streams may therefore have any length,
    only their next tokens are held, and they do not affect each other's scores, except for
    rounding. With a reader whose weights learn, each stream begins with those of the model, and the
    batch size must be 1.
    """

    def __init__(
        self, reader: Reader, tgt_len: int, *, batch_size: int, first_len: int | None = None
    ):
        check_integer("batch_size", batch_size, 1)
        self.reader = reader
        self._tgt_len = tgt_len
        self._batch_size = batch_size
        # A reader may take fewer inputs of a new stream.
        self._first_len = tgt_len if first_len is None else first_len

    def score(
        self,
        streams: Iterable[Iterable[TextChunk]],
        *,
        prefix: Sequence[int] | np.ndarray = (),
        vocabulary: Vocabulary | None = None,
        keep_tokens: bool = True,
        report: Callable[[int], object] = lambda n_ids: None,
    ) -> Iterator[tuple[TextName, TextTotals]]:
        """Scores texts.

        Args:
            streams: Chunks of texts, which are consumed as needed. The memory is carried from each
                text of a stream to the next.
            prefix: (p,) ids that are read before each stream and not scored.
            vocabulary: The vocabulary, to count unknown tokens; `None` if only ids are known.
            keep_tokens: Whether to yield `TextScore`, with ids and losses, instead of `TextTotals`.
            report: Called with the number of ids after each segment.

        Yields:
            The name and the score of each text, in order.
        """
        before = TextChunk(np.asarray(prefix, np.int32), None, None, (0, 0), None)
        segments = cut_streams(
            (itertools.chain([before], chunks) for chunks in streams),
            lambda name: Text(name, vocabulary, keeps_tokens=keep_tokens),
            self._choose_shape,
            batch_size=self._batch_size,
            tgt_len=self._tgt_len,
        )
        opened: dict[int, TextStream] = {}
        current = 0
        with explain_full_memory(_ADVICE):
            for segment, nats in score_segments(self.reader, segments):
                for stream, text, ids, row, losses in segment.parts:
                    opened[stream.number] = stream
                    if text is not None:
                        text.read(ids, nats[row, losses] if len(nats) else nats.ravel())
                report(sum(len(part.ids) for part in segment.parts))
                while current in opened:
                    for text in opened[current].pop_finished():
                        yield text.name, text.finish()
                    if not opened[current].is_done:
                        break
                    del opened[current]
                    current += 1

    def _choose_shape(self, streams: Sequence[TextStream]) -> Shape:
        return Shape(len(streams), self._tgt_len, uses_memory=True, first_len=self._first_len)


class Scorer(TextScorer):
    """Scores streams of texts with a model that does not change.

    A stream of more than T tokens is cut into segments of T, as in evaluation. Shorter streams are
    read in shorter segments, which is faster and gives the same results. If an empty memory is
    masked and no stream of the batch is longer than the memory, each is read in one segment without
    any memory, where that is less work. With `same_length`, longer segments give the same results,
    too, and are faster for small batches.

    Args:
        model: The model. Its weights must not change during a call.
        config: The segment length T, the span and the temperature. Without `same_length`, T
            determines how much context the first tokens of a segment see; otherwise it affects only
            the speed.
        batch_size: Largest number of streams B to read at once; fewer streams use smaller batches.
        mask_empty_memory: See `CachedModel`.
        jit: How much of the step XLA compiles, once for each shape; one of `JIT_MODES`.

    Raises:
        UserError: If `batch_size` is not positive, or the model cannot read with the config.
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
        check_integer("batch_size", batch_size, 1)
        self._batch_sizes = _list_sizes(1, batch_size)
        self._tgt_lens = {
            n_rows: join_segments(n_rows, config.tgt_len, config.span)
            for n_rows in self._batch_sizes
        }
        max_len = max(self._tgt_lens.values())
        reader = FrozenReader(
            model, config, max_len=max_len, mask_empty_memory=mask_empty_memory, jit=jit
        )
        super().__init__(reader, max_len, batch_size=batch_size)
        self._whole_lens = {
            n_rows: _list_whole_lens(n_rows, self._tgt_lens[n_rows], reader.cached)
            for n_rows in self._batch_sizes
        }
        self._dense_cost = _estimate_dense_cost(model.config)

    def _choose_shape(self, streams: Sequence[TextStream]) -> Shape:
        """Returns the shape of the next segment, one of those that are compiled."""
        n_rows = _fit(len(streams), self._batch_sizes)
        whole_len = self._choose_whole_len(streams, n_rows)
        tgt_len = whole_len or self._tgt_lens[n_rows]
        is_whole = whole_len is not None and whole_len <= self.reader.cached.max_len_without_memory
        return Shape(n_rows, tgt_len, uses_memory=not is_whole, first_len=tgt_len)

    def _choose_whole_len(self, streams: Sequence[TextStream], n_rows: int) -> int | None:
        """Returns the length of a segment that holds all streams; `None` to read several."""
        whole_lens, tgt_len = self._whole_lens[n_rows], self._tgt_lens[n_rows]
        if not all(stream.is_whole(whole_lens[-1]) for stream in streams):
            return None
        n_inputs = [stream.n_inputs for stream in streams]
        whole_len = _fit(max(n_inputs), whole_lens)
        if whole_len <= tgt_len:
            return whole_len
        # The padding of streams of different lengths may cost more than reading the memory.
        n_segments = sum(-(-count // tgt_len) for count in n_inputs)
        n_keys = tgt_len + self.reader.cached.span.mem_len
        whole_cost = n_rows * whole_len * (self._dense_cost + whole_len)
        segments_cost = n_segments * tgt_len * (self._dense_cost + n_keys)
        return whole_len if whole_cost <= segments_cost else None


def join_segments(n_rows: int, tgt_len: int, span: AttentionSpan) -> int:
    """Returns the fastest segment length, at least T, that gives the same losses as T.

    With `span.same_length`, a token sees the same keys in segments of any length. Longer segments
    mean larger matrix products and fewer updates of the memory, but also more keys that most
    queries do not see.

    >>> span = AttentionSpan(2100, same_length=True)
    >>> [join_segments(n_rows, 80, span) for n_rows in (1, 2, 4, 16)]
    [320, 160, 80, 80]
    """
    if not span.same_length:
        return tgt_len
    return max(tgt_len, min(_JOINED_TOKENS // n_rows, span.mem_len // _MEMORY_DIVISOR))


def _list_whole_lens(n_rows: int, tgt_len: int, cached: SegmentReader) -> list[int]:
    """Returns the lengths, ascending, of segments that hold whole streams."""
    sizes = _list_sizes(_MIN_TGT_LEN, tgt_len)
    limit = min(cached.max_len_without_memory, math.isqrt(_MAX_SCORES // n_rows))
    while 2 * sizes[-1] <= limit:
        sizes.append(2 * sizes[-1])
    return sizes


def _estimate_dense_cost(config: ModelConfig) -> float:
    """Returns how many keys cost a query as much as the kernels of its layer.

    A key takes part in three products: content, position and value. They are taken to be half as
    fast as those with kernels, because they are smaller, and are followed by a softmax.
    """
    d_heads = config.n_head * config.d_head
    return config.d_model * (4 * d_heads + 2 * config.d_inner) / (3 * d_heads) / 2


def _list_sizes(first: int, last: int) -> list[int]:
    """Returns the sizes to compile, up to and including `last`.

    >>> _list_sizes(8, 100), _list_sizes(8, 5), _list_sizes(1, 16)
    ([8, 32, 100], [5], [1, 4, 16])
    """
    sizes = []
    while first < last:
        sizes.append(first)
        first *= _GROWTH
    return [*sizes, last]


def _fit(n: int, sizes: Sequence[int]) -> int:
    return next(size for size in sizes if size >= n)
