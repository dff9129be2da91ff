"""Cutting a split into lanes for an evaluation.

Letters: B lanes, T tokens of a segment, n tokens of the split.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from txl_tf.data.lanes import Tokens, check_positive, find_document_starts
from txl_tf.errors import UserError


class Segment(NamedTuple):
    """One step of an evaluation.

    Attributes:
        ids: The inputs, (B, T) int32; 0 where there is nothing to read.
        targets: The tokens one to the right, (B, T) int32.
        mask: Where `targets` counts, (B, T) bool.
        document_starts: Where `ids` begins a document, (B, T) bool.
        begins: Which lanes have read nothing before, (B,) bool: what their memory holds by now
            is of padding, and must be emptied.
    """

    ids: np.ndarray
    targets: np.ndarray
    mask: np.ndarray
    document_starts: np.ndarray
    begins: np.ndarray


class EvaluationLanes:
    """Segments for an evaluation: every token but the first is a target exactly once.

    The first has nothing before it. The n - 1 targets are cut into B lanes of equal length, the
    last ones shorter or, with many lanes, empty. That length is a multiple of T, so that the
    segments end where those of a single lane do. What does not fill a segment is padded with 0
    and masked. Iterating reads the segments in order; `len` is their number.

    With `warm_len` each lane first reads that much of the text before its own, masked, to fill
    the memory. A lane with less before it begins later: all lanes are in step.

    With `drop_rest` the split is cut as the 2019 release cuts it for GPUs: into B lanes of n // B
    tokens, and the n % B at the end are left out. Each lane is a text of its own, whose first
    token is no target.

    Args:
        split: The tokens.
        n_lanes: B, the rows of a batch.
        tgt_len: T, the tokens of a segment.
        warm_len: Tokens to read before those that count, rounded up to whole segments.
        drop_rest: Whether to cut as the release.

    Attributes:
        n_warm: The segments that come first, of which nothing counts.
        n_targets: The targets that count.
        n_left_out: Those that do not, beside the split's first token.

    Raises:
        UserError: If the split has fewer than 2 tokens, or with `drop_rest` fewer for each lane.
        ValueError: If a size is not positive, or `drop_rest` is to be warmed.
    """

    def __init__(
        self,
        split: Tokens,
        *,
        n_lanes: int,
        tgt_len: int,
        warm_len: int = 0,
        drop_rest: bool = False,
    ) -> None:
        check_positive(n_lanes=n_lanes, tgt_len=tgt_len)
        if drop_rest and warm_len:
            raise ValueError(
                "`warm_len` must be 0 with `drop_rest`, whose lanes are texts of their own. "
                f"Received: warm_len={warm_len}"
            )
        if len(split) < 2:
            raise UserError(
                f"`split` must have at least 2 tokens, a context and a target. "
                f"Received: {len(split)} tokens"
            )
        self.n_lanes = n_lanes
        self.tgt_len = tgt_len
        self.drop_rest = drop_rest
        self._split = split
        cut = _cut_as_release if drop_rest else _cut_all
        self._lanes = cut(len(split), n_lanes, tgt_len)
        self.n_targets = sum(map(len, self._lanes))
        self.n_left_out = len(split) - 1 - self.n_targets
        last_start = max(lane.start for lane in self._lanes if lane)
        self.n_warm = min(-(-warm_len // tgt_len), last_start // tgt_len)

    @property
    def warm_len(self) -> int:
        """The tokens that are read before those that count, where a lane has as many before it."""
        return self.n_warm * self.tgt_len

    def describe(self, noun: str = " lane") -> str:
        """Returns how many lanes there are and how they begin, for people.

        Args:
            noun: What stands behind the number; it may be empty.
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
        return (self._read_segment(index) for index in range(len(self)))

    def _read_segment(self, index: int) -> Segment:
        shape = (self.n_lanes, self.tgt_len)
        segment = Segment(
            ids=np.zeros(shape, np.int32),
            targets=np.zeros(shape, np.int32),
            mask=np.zeros(shape, bool),
            document_starts=np.zeros(shape, bool),
            begins=np.zeros(self.n_lanes, bool),
        )
        for row, lane in enumerate(self._lanes):
            start = lane.start + (index - self.n_warm) * self.tgt_len
            count = min(self.tgt_len, lane.stop - start)
            if not lane or start < 0 or count <= 0:  # empty, not begun, or at its end
                continue
            ids = self._split.read(start, start + count + 1)
            segment.ids[row, :count] = ids[:-1]
            segment.targets[row, :count] = ids[1:]
            segment.mask[row, :count] = index >= self.n_warm
            starts = find_document_starts(self._split, start, start + count)
            segment.document_starts[row, :count] = starts
            segment.begins[row] = index == 0 or start == 0
        return segment


def _cut_all(n_tokens: int, n_lanes: int, tgt_len: int) -> list[range]:
    """Returns the positions of the inputs of each lane, so that every target counts."""
    n_targets = n_tokens - 1
    lane_len = -(-n_targets // (n_lanes * tgt_len)) * tgt_len
    bounds = [min(lane * lane_len, n_targets) for lane in range(n_lanes + 1)]
    return [range(*pair) for pair in itertools.pairwise(bounds)]


def _cut_as_release(n_tokens: int, n_lanes: int, tgt_len: int) -> list[range]:
    """Returns the positions of the inputs of each lane, as the release has them."""
    lane_len = n_tokens // n_lanes
    if lane_len < 2:
        raise UserError(
            "`n_lanes` must leave each lane at least 2 tokens, a context and a target. "
            f"Received: n_lanes={n_lanes}, {n_tokens} tokens"
        )
    return [range(lane * lane_len, (lane + 1) * lane_len - 1) for lane in range(n_lanes)]
