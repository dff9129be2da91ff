"""Cutting a split into overlapping windows, to evaluate models without memory."""

from collections.abc import Iterator

from txl_tf.data.lanes.evaluation_lanes import EvaluationLanes, Segment
from txl_tf.data.lanes.training_lanes import Tokens, check_positive
from txl_tf.errors import UserError


class SlidingWindows:
    """Segments that are windows of W tokens, each moved on by a stride s from the one before.

    Only the last s targets of a window count, so each has at least W - s + 1 tokens of context; of
    the first window, all count. So every token except the first is a target exactly once. A stride
    of 1 gives every target a window of its own (figure 1b of Dai et al. 2019); a stride of W / 2 is
    the evaluation of models that were trained on the last half of each segment.

    The interface is that of `EvaluationLanes`, for an evaluator with a memory of 0 tokens.
    """

    n_warm = warm_len = n_left_out = 0
    drop_rest = False

    def __init__(self, split: Tokens, *, n_lanes: int, tgt_len: int, stride: int):
        check_positive(n_lanes=n_lanes, tgt_len=tgt_len, stride=stride)
        if stride > tgt_len:
            raise UserError(
                "`stride` must be at most `tgt_len`, or tokens would be left out. "
                f"Received: stride={stride}, tgt_len={tgt_len}"
            )
        if len(split) < 2:
            raise UserError(
                f"`split` must have at least 2 tokens, a context and a target. "
                f"Received: {len(split)} tokens"
            )
        self.tgt_len = tgt_len
        self.stride = stride
        self.n_targets = len(split) - 1
        self.split = split
        self._n_windows = 1 + max(0, -(-(self.n_targets - tgt_len) // stride))
        self.n_lanes = min(n_lanes, self._n_windows)

    def describe(self, noun: str = " at a time") -> str:
        """Returns a description of the windows."""
        return f"{self.n_lanes}{noun}, sliding windows with a stride of {self.stride:,}"

    def __len__(self) -> int:
        return -(-self._n_windows // self.n_lanes)

    def __iter__(self) -> Iterator[Segment]:
        return self.read(0, len(self))

    def read(self, start: int, stop: int) -> Iterator[Segment]:
        """Yields the segments from `start` up to `stop`."""
        return (self._read_segment(index) for index in range(start, stop))

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


AnyLanes = EvaluationLanes | SlidingWindows
