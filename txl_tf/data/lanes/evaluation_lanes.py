"""Cutting a split into lanes or overlapping windows for an evaluation.

Letters: B lanes, T tokens in a segment, n tokens in the split.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from txl_tf.data.lanes.training_lanes import Tokens, find_document_starts
from txl_tf.errors import UserError, check_integer


class Segment(NamedTuple):
    """One step of an evaluation.

    Attributes:
        ids: The inputs, (B, T) int32; 0 as padding.
        targets: The next tokens, (B, T) int32; 0 as padding.
        mask: Which targets count, (B, T) bool.
        document_starts: Which inputs begin a document, (B, T) bool; `None` if documents share
            their memory.
        begins: Which rows have read only padding so far, (B,) bool: their memory must be emptied
            before this segment.
        counts: The number of inputs of each row, (B,) int32; the rest is padding, which is not
            stored in the memory. `None` if the memory may store padding.
        sources: The row of the previous segment that each row continues; `None` for the same row.
        uses_memory: Whether the memory is read and written.
    """

    ids: np.ndarray
    targets: np.ndarray
    mask: np.ndarray
    document_starts: Any
    begins: np.ndarray
    counts: np.ndarray | None = None
    sources: Sequence[int] | None = None
    uses_memory: bool = True

    @classmethod
    def make_empty(cls, n_rows: int, tgt_len: int) -> Self:
        """Returns a segment of padding."""
        shape = (n_rows, tgt_len)
        return cls(
            ids=np.zeros(shape, np.int32),
            targets=np.zeros(shape, np.int32),
            mask=np.zeros(shape, bool),
            document_starts=np.zeros(shape, bool),
            begins=np.zeros(n_rows, bool),
        )

    def fill_row(self, row: int, split: Tokens, start: int, count: int) -> None:
        """Reads `count` inputs of a split, from `start` on, and their targets into a row."""
        ids = split.read(start, start + count + 1)
        self.ids[row, :count] = ids[:-1]
        self.targets[row, :count] = ids[1:]
        starts = find_document_starts(split, start, start + count)
        self.document_starts[row, :count] = starts


class EvaluationLanes:
    """Segments for an evaluation: every token except the first is a target exactly once.

    The first token has no context. The n - 1 targets are cut into B lanes of equal length, of
    which the last ones may be shorter or, with many lanes, empty. The length is a multiple of T,
    so segments end where those of a single lane end. Incomplete segments are padded with 0 and
    masked. Iteration reads the segments in order; `len` is their number.

    With `warm_len` (warm lanes), each lane first reads that many tokens before its own, masked, to
    fill the memory. A lane with fewer tokens before it begins later, so that all lanes stay in
    step.

    With `drop_rest`, the split is cut as the 2019 release cuts it for GPUs: into B lanes of n // B
    tokens each, without the last n % B tokens. Each lane is a separate text, whose first token is
    not a target.

    In the 2019 code: `batchify` and `get_input_fn`.

    Args:
        split: The tokens.
        n_lanes: B, the rows of a batch.
        tgt_len: T, the tokens in a segment.
        warm_len: The number of tokens to read before those that count, rounded up to whole
            segments.
        drop_rest: Whether to cut the split as the 2019 release does.

    Attributes:
        split: The tokens.
        n_warm: The number of segments at the beginning that only fill the memory.
        n_targets: The number of targets that count.
        n_left_out: The number of targets that do not count, not including the split's first token.

    Raises:
        UserError: If the split or, with `drop_rest`, a lane has fewer than 2 tokens.
        ValueError: If a size is not positive, or `warm_len` is negative or given with `drop_rest`.
    """

    stride: int | None = None  # of `SlidingWindows`

    def __init__(
        self,
        split: Tokens,
        *,
        n_lanes: int,
        tgt_len: int,
        warm_len: int = 0,
        drop_rest: bool = False,
    ) -> None:
        check_integer("n_lanes", n_lanes, 1)
        check_integer("tgt_len", tgt_len, 1)
        check_integer("warm_len", warm_len, 0)
        if drop_rest and warm_len:
            raise UserError(
                "`warm_len` must be 0 with `drop_rest`, whose lanes are separate texts. "
                f"Received: warm_len={warm_len}"
            )
        if len(split) < 2:
            raise UserError(
                f"`split` must have at least 2 tokens, a context and a target. "
                f"Received: {len(split)} tokens"
            )
        self.split = split
        self.n_lanes = n_lanes
        self.tgt_len = tgt_len
        self.drop_rest = drop_rest
        cut = _cut_as_release if drop_rest else _cut_all
        self._lanes = cut(len(split), n_lanes, tgt_len)
        self.n_targets = sum(map(len, self._lanes))
        self.n_left_out = len(split) - 1 - self.n_targets
        last_start = max(lane.start for lane in self._lanes if lane)
        self.n_warm = min(-(-warm_len // tgt_len), last_start // tgt_len)

    @property
    def warm_len(self) -> int:
        """The number of tokens that a lane reads before those that count, if there are enough."""
        return self.n_warm * self.tgt_len

    def describe(self, noun: str = " lane") -> str:
        """Returns a description of the lanes: their number and how they begin.

        Args:
            noun: The noun after the number, with a space before it; it may be empty.
        """
        lanes = f"{self.n_lanes}{noun}{'s' * (bool(noun) and self.n_lanes > 1)}"
        if self.drop_rest:
            return f"{lanes}, as the 2019 release counts"
        if self.n_lanes == 1:
            return lanes
        return f"{lanes}, warmed by {self.warm_len:,} tokens" if self.n_warm else f"{lanes}, cold"

    def __len__(self) -> int:
        longest = max(map(len, self._lanes))
        return self.n_warm + -(-longest // self.tgt_len)

    def __iter__(self) -> Iterator[Segment]:
        return self.read(0, len(self))

    def read(self, start: int, stop: int) -> Iterator[Segment]:
        """Yields the segments from `start` up to `stop`."""
        return (self._read_segment(index) for index in range(start, stop))

    def _read_segment(self, index: int) -> Segment:
        segment = Segment.make_empty(self.n_lanes, self.tgt_len)
        for row, lane in enumerate(self._lanes):
            start = lane.start + (index - self.n_warm) * self.tgt_len
            count = min(self.tgt_len, lane.stop - start)
            if not lane or start < 0 or count <= 0:  # empty, not begun yet, or finished
                continue
            segment.fill_row(row, self.split, start, count)
            segment.mask[row, :count] = index >= self.n_warm
            segment.begins[row] = index == 0 or start == 0
        return segment


class SlidingWindows(EvaluationLanes):
    """Segments that overlap: windows of W tokens, each starting a stride s after the last.

    Only the last s targets of a window count, so each has at least W - s + 1 tokens of context; in
    the first window, all count. Every token except the first is therefore a target exactly once. A
    stride of 1 gives every target a window of its own (figure 1b of Dai et al. 2019); a stride of
    W / 2 is the evaluation of models that were trained on the last half of each segment.

    The evaluator that reads these segments must have a memory of 0 tokens.
    """

    def __init__(self, split: Tokens, *, n_lanes: int, tgt_len: int, stride: int):
        check_integer("n_lanes", n_lanes, 1)
        check_integer("stride", stride, 1)
        super().__init__(split, n_lanes=1, tgt_len=tgt_len)
        if stride > tgt_len:
            raise UserError(
                "`stride` must be at most `tgt_len`, or tokens would be left out. "
                f"Received: stride={stride}, tgt_len={tgt_len}"
            )
        self.stride: int = stride
        self._n_windows = 1 + max(0, -(-(self.n_targets - tgt_len) // stride))
        self.n_lanes = min(n_lanes, self._n_windows)

    def describe(self, noun: str = " at a time") -> str:
        """Returns a description of the windows."""
        return f"{self.n_lanes}{noun}, sliding windows with a stride of {self.stride:,}"

    def __len__(self) -> int:
        return -(-self._n_windows // self.n_lanes)

    def _read_segment(self, index: int) -> Segment:
        segment = Segment.make_empty(self.n_lanes, self.tgt_len)
        segment.begins[:] = True
        for row in range(self.n_lanes):
            window = index * self.n_lanes + row
            if window >= self._n_windows:
                break
            start = window * self.stride
            count = min(self.tgt_len, self.n_targets - start)
            segment.fill_row(row, self.split, start, count)
            n_known = self.tgt_len - self.stride if window else 0  # counted by windows before
            segment.mask[row, n_known:count] = True
        return segment


def _cut_all(n_tokens: int, n_lanes: int, tgt_len: int) -> list[range]:
    """Returns the input positions of each lane, such that every target counts."""
    n_targets = n_tokens - 1
    lane_len = -(-n_targets // (n_lanes * tgt_len)) * tgt_len
    bounds = [min(lane * lane_len, n_targets) for lane in range(n_lanes + 1)]
    return [range(*pair) for pair in itertools.pairwise(bounds)]


def _cut_as_release(n_tokens: int, n_lanes: int, tgt_len: int) -> list[range]:
    """Returns the input positions of each lane, cut as in the 2019 release."""
    lane_len = n_tokens // n_lanes
    if lane_len < 2:
        raise UserError(
            "`n_lanes` must leave each lane at least 2 tokens, a context and a target. "
            f"Received: n_lanes={n_lanes}, {n_tokens} tokens"
        )
    return [range(lane * lane_len, (lane + 1) * lane_len - 1) for lane in range(n_lanes)]
