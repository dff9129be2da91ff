"""The rows of a batch, each of which reads one stream of tokens after the other."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

# So many ids of a stream are read ahead, where there are as many: streams that follow each other in
# one file are told apart only once they are read.
_AHEAD = 2**16


class TokenSlot:
    """A stream that is being read, and the row of the batch that reads it.

    Args:
        stream: its number.
        parts: its ids, in parts of any length.

    Attributes:
        stream: as above.
        row: the row whose memory is the stream's; `None` before its first segment.
    """

    def __init__(self, stream: int, parts: Iterator[np.ndarray]):
        self.stream = stream
        self.row: int | None = None
        self._parts = parts
        self._ids = np.zeros(0, np.int32)  # from the next input on
        self._has_more = True
        self._is_begun = False
        self._fill(_AHEAD)

    @property
    def n_inputs(self) -> int:
        """How many tokens that are held have one behind them."""
        return max(len(self._ids) - 1, 0)

    @property
    def is_taken(self) -> bool:
        """Whether the stream has no ids but those that are held."""
        return not self._has_more

    @property
    def is_done(self) -> bool:
        """Whether the whole stream was read."""
        return self.is_taken and not self.n_inputs

    @property
    def is_fresh(self) -> bool:
        """Whether the next segment is the stream's first."""
        return not self._is_begun

    def is_whole(self, tgt_len: int) -> bool:
        """Tells whether the stream has one segment in all."""
        return self.is_fresh and self.is_taken and self.n_inputs <= tgt_len

    def peek(self, n_ids: int) -> np.ndarray:
        """Returns the next ids from the next input on, at most so many."""
        return self._ids[:n_ids]

    def advance(self, n_inputs: int) -> np.ndarray:
        """Goes on by so many inputs.

        Returns:
            The ids that no call returned before: the targets, and the stream's first token.
        """
        ids = self._ids[int(self._is_begun) : n_inputs + 1]
        self._ids = self._ids[n_inputs:]
        self._is_begun = True
        return ids

    def fill(self, tgt_len: int) -> None:
        """Takes more of the stream if less than a segment of it is held."""
        # One more than a segment and its last target: else nobody knew whether it is the last.
        if len(self._ids) < tgt_len + 2:
            self._fill(max(_AHEAD, tgt_len + 2))

    def _fill(self, n_ids: int) -> None:
        held, n_held = [self._ids], len(self._ids)
        while self._has_more and n_held < n_ids:
            part = next(self._parts, None)
            if part is None:
                self._has_more = False
            else:
                held.append(part)
                n_held += len(part)
        self._ids = np.concatenate(held)


class StreamQueue:
    """The streams that no row reads yet.

    Args:
        streams: each the ids of a text, in parts.
        in_order: whether a stream must be taken to its end before the next one is asked for.
    """

    def __init__(self, streams: Iterable[Iterable[np.ndarray]], *, in_order: bool):
        self._streams = enumerate(streams)
        self._in_order = in_order
        self._last: TokenSlot | None = None

    def take(self) -> TokenSlot | None:
        """Returns a slot with the next stream; `None` if there is none, or not yet."""
        if self._in_order and self._last is not None and not self._last.is_taken:
            return None
        found = next(self._streams, None)
        if found is None:
            return None
        self._last = TokenSlot(found[0], iter(found[1]))
        return self._last


def arrange_slots(slots: Sequence[TokenSlot], n_rows: int) -> list[TokenSlot | None]:
    """Gives each slot a row of the next batch, its own if that has it.

    Args:
        slots: n_rows of them or fewer.
        n_rows: of the next batch.

    Returns:
        The slot of each row. Their attributes `row` still name those of the last batch.
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
