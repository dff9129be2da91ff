"""Continuous batching: each row of a batch reads one stream of texts after another."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from txl_tf.data.lanes.evaluation_lanes import Segment
from txl_tf.scoring.text_chunks import TextChunk, TextName
from txl_tf.scoring.text_scores import Text

# Number of ids to read ahead: where a stream of a file ends is known only after it has been read.
_N_AHEAD = 2**16


class Part(NamedTuple):
    """Consecutive tokens of a text in a row of a segment."""

    stream: "TextStream"
    text: Text | None  # `None` if no token of the row belongs to one
    ids: np.ndarray  # (n,) int32
    row: int
    losses: slice  # their n places in the row, or n - 1 if the first token has no context


class Shape(NamedTuple):
    """The shape of a segment."""

    n_rows: int
    tgt_len: int
    uses_memory: bool
    first_len: int  # the number of inputs that a row reads of a new stream


class TextStream:
    """A stream of texts that is being read; tokens before the first text belong to none."""

    def __init__(
        self,
        number: int,
        chunks: Iterable[TextChunk],
        make_text: Callable[[TextName], Text],
        tgt_len: int,
    ):
        self.number = number
        self.row: int | None = None  # of the memory; `None` before the first segment
        self.is_fresh = True  # whether the next segment is the first
        self.is_consumed = False  # whether all remaining ids are held
        self.texts: deque[Text] = deque()  # without those that `pop_finished` has yielded
        self._chunks = iter(chunks)
        self._make_text = make_text
        self._tgt_len = tgt_len
        self._ids = np.zeros(0, np.int32)  # from the next input token
        self._n_before = 0  # ids before the first text that have no part yet
        self._without_part: deque[Text] = deque()  # texts with such ids
        self._fill()

    @property
    def n_inputs(self) -> int:
        """The number of held tokens that have a target."""
        return max(len(self._ids) - 1, 0)

    @property
    def is_done(self) -> bool:
        """Whether the whole stream has been read."""
        return self.is_consumed and not self.n_inputs

    def is_whole(self, tgt_len: int) -> bool:
        """Returns whether the whole stream fits into one segment."""
        return self.is_fresh and self.is_consumed and self.n_inputs <= tgt_len

    def peek(self, n_ids: int) -> np.ndarray:
        """Returns up to `n_ids` ids from the next input token."""
        return self._ids[:n_ids]

    def advance(self, n_inputs: int, row: int) -> list[Part]:
        """Moves past `n_inputs` tokens and returns their targets, by text.

        The first call adds the stream's first token, which is not a target.
        """
        n_first = int(self.is_fresh)
        ids = self._ids[1 - n_first : n_inputs + 1]
        self._ids = self._ids[n_inputs:]
        self.is_fresh = False
        self._fill()
        start = min(self._n_before, len(ids))
        self._n_before -= start
        parts = []
        while self._without_part:
            text = self._without_part[0]
            stop = min(start + text.n_ids - text.n_cut, len(ids))
            losses = slice(max(start - n_first, 0), max(stop - n_first, 0))
            parts.append(Part(self, text, ids[start:stop], row, losses))
            text.n_cut += stop - start
            start = stop
            if not text.is_cut:
                break
            self._without_part.popleft()
        return parts or [Part(self, None, ids[:0], row, slice(0, 0))]

    def pop_finished(self) -> Iterator[Text]:
        """Yields the first texts whose tokens all have their losses."""
        while self.texts and self.texts[0].is_finished:
            yield self.texts.popleft()

    def _fill(self) -> None:
        """Takes more ids from the chunks if less than a segment is held."""
        # One id more than a segment and its last target tells whether the segment is the last.
        if self.is_consumed or len(self._ids) >= self._tgt_len + 2:
            return
        held, n_held = [self._ids], len(self._ids)
        n_wanted = max(_N_AHEAD, self._tgt_len + 2)
        while n_held < n_wanted and (chunk := next(self._chunks, None)) is not None:
            held.append(chunk.ids)
            n_held += len(chunk.ids)
            self._add(chunk)
        self.is_consumed = n_held < n_wanted
        if self.is_consumed and self.texts:
            self.texts[-1].is_whole = True
        self._ids = np.concatenate(held)

    def _add(self, chunk: TextChunk) -> None:
        if chunk.begins is not None:
            if self.texts:
                self.texts[-1].is_whole = True
            self.texts.append(self._make_text(chunk.begins))
            self._without_part.append(self.texts[-1])
        if self.texts:
            self.texts[-1].extend(chunk)
        else:
            self._n_before += len(chunk.ids)


def cut_streams(
    streams: Iterable[Iterable[TextChunk]],
    make_text: Callable[[TextName], Text],
    choose_shape: Callable[[Sequence[TextStream]], Shape],
    *,
    batch_size: int,
    tgt_len: int,
) -> Iterator[Segment]:
    """Yields segments in which each row reads one stream after another, consumed as needed.

    `make_text` makes the text of a name, and `choose_shape` returns the shape of the next segment
    of the given streams: at most `batch_size` rows of `tgt_len`. A segment without rows has the
    parts of a stream with fewer than 2 tokens.
    """
    numbered = enumerate(streams)
    active: list[TextStream] = []
    n_before = 0  # rows of the memory
    while True:
        while len(active) < batch_size and (found := next(numbered, None)):
            stream = TextStream(*found, make_text, tgt_len)
            if stream.is_done:
                yield Segment.make_empty(0, 0)._replace(parts=tuple(stream.advance(0, 0)))
            else:
                active.append(stream)
        if not active:
            return
        shape = choose_shape(active)
        rows = arrange_streams(active, shape.n_rows)
        yield _make_segment(rows, shape, n_before)
        if shape.uses_memory:
            n_before = shape.n_rows
        active = [stream for stream in active if not stream.is_done]


def _make_segment(rows: Sequence[TextStream | None], shape: Shape, n_before: int) -> Segment:
    """Returns the next segment of each row; rows without a stream are padding."""
    n_rows, tgt_len, uses_memory, first_len = shape
    segment = Segment.make_empty(n_rows, tgt_len)
    segment.begins[:] = True
    counts, sources, parts = np.zeros(n_rows, np.int32), list(range(n_rows)), []
    for row, stream in enumerate(rows):
        if stream is None:
            continue
        segment.begins[row] = stream.is_fresh
        known = stream.peek(1 + (first_len if stream.is_fresh else tgt_len))
        counts[row] = count = len(known) - 1
        segment.ids[row, :count], segment.targets[row, :count] = known[:-1], known[1:]
        segment.mask[row, :count] = True
        if stream.row is not None:
            sources[row] = stream.row
        if uses_memory:
            stream.row = row
        parts += stream.advance(count, row)
    is_same = sources == list(range(n_before))
    return segment._replace(
        document_starts=None,
        counts=counts,
        sources=None if is_same else [min(row, max(n_before - 1, 0)) for row in sources],
        uses_memory=uses_memory,
        parts=tuple(parts),
    )


def arrange_streams(streams: Sequence[TextStream], n_rows: int) -> list[TextStream | None]:
    """Returns the stream of each row: streams keep their row if the batch has it."""
    rows: list[TextStream | None] = [None] * n_rows
    others = []
    for stream in streams:
        if stream.row is not None and stream.row < n_rows:
            rows[stream.row] = stream
        else:
            others.append(stream)
    free = [row for row in range(n_rows) if rows[row] is None]
    for row, stream in zip(free, others, strict=False):
        rows[row] = stream
    return rows
