"""The slots of continuous batching: each row of a batch reads one stream after another."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

# Number of ids to read ahead: where a stream of a file ends is known only after it has been read.
_N_AHEAD = 2**16


class Piece(NamedTuple):
    """Consecutive tokens of a stream and their losses.

    Args:
        stream: The number of the stream, from 0.
        ids: (n,) int32.
        nats: (n,) float32, -log p of each id; (n - 1,) without the first id if it is the stream's
            first token, which has no context.
        is_last: Whether the stream ends here.
    """

    stream: int
    ids: np.ndarray
    nats: np.ndarray
    is_last: bool


class TokenSlot:
    """A stream that is being read.

    Args:
        stream: The number of the stream.
        chunks: Its ids, in chunks of any length.

    Attributes:
        row: The batch row with the stream's memory; `None` before its first segment.
        is_fresh: Whether the next segment is the stream's first.
        is_consumed: Whether all remaining ids of the stream are held.
    """

    def __init__(self, stream: int, chunks: Iterator[np.ndarray]):
        self.stream = stream
        self.row: int | None = None
        self.is_fresh = True
        self.is_consumed = False
        self._chunks = chunks
        self._ids = np.zeros(0, np.int32)  # from the next input token
        self._fill(_N_AHEAD)

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

    def advance(self, n_inputs: int) -> np.ndarray:
        """Moves on by `n_inputs` tokens.

        Returns:
            The targets of these tokens, after the stream's first token if it is one of them.
        """
        ids = self._ids[0 if self.is_fresh else 1 : n_inputs + 1]
        self._ids = self._ids[n_inputs:]
        self.is_fresh = False
        return ids

    def fill(self, tgt_len: int) -> None:
        """Takes more ids from the stream if less than a segment is held."""
        # One id more than a segment and its last target tells whether the segment is the last.
        if len(self._ids) < tgt_len + 2:
            self._fill(max(_N_AHEAD, tgt_len + 2))

    def _fill(self, n_ids: int) -> None:
        held, n_held = [self._ids], len(self._ids)
        while n_held < n_ids and (chunk := next(self._chunks, None)) is not None:
            held.append(chunk)
            n_held += len(chunk)
        self.is_consumed = n_held < n_ids
        self._ids = np.concatenate(held)


class StreamQueue:
    """The queue of streams that wait for a slot.

    Args:
        streams: The ids of each stream, in chunks.
        in_order: Whether each stream must be consumed before the next one is requested.
    """

    def __init__(self, streams: Iterable[Iterable[np.ndarray]], *, in_order: bool):
        self._streams = enumerate(streams)
        self._in_order = in_order
        self._last: TokenSlot | None = None

    def take(self) -> TokenSlot | None:
        """Returns a slot with the next stream; `None` if none is available now."""
        if self._in_order and self._last is not None and not self._last.is_consumed:
            return None
        found = next(self._streams, None)
        if found is None:
            return None
        self._last = TokenSlot(found[0], iter(found[1]))
        return self._last

    def fill(self, active: list[TokenSlot], n_slots: int) -> Iterator[Piece]:
        """Adds slots with the next streams to `active` until it has `n_slots` of them.

        Yields:
            The piece of each stream that has at most one token, and therefore takes no slot.
        """
        while len(active) < n_slots and (slot := self.take()):
            if slot.is_done:
                yield Piece(slot.stream, slot.peek(1), np.zeros(0, np.float32), True)
            else:
                active.append(slot)


def arrange_slots(slots: Sequence[TokenSlot], n_rows: int) -> list[TokenSlot | None]:
    """Assigns each slot a row of the next batch: its present row if the batch has that row.

    Args:
        slots: At most `n_rows` slots.
        n_rows: The number of rows of the next batch.

    Returns:
        The slot of each row, or `None`. The slots' own `row` is left unchanged.
    """
    rows: list[TokenSlot | None] = [None] * n_rows
    others = []
    for slot in slots:
        if slot.row is not None and slot.row < n_rows:
            rows[slot.row] = slot
        else:
            others.append(slot)
    free = (row for row in range(n_rows) if rows[row] is None)
    for row, slot in zip(list(free), others, strict=False):
        rows[row] = slot
    return rows
