"""Cutting a split into overlapping windows, to evaluate models without memory."""

from txl_tf.data.lanes.evaluation_lanes import EvaluationLanes, Segment
from txl_tf.data.lanes.training_lanes import Tokens, check_positive
from txl_tf.errors import UserError


class SlidingWindows(EvaluationLanes):
    """Segments that are windows of W tokens, each moved on by a stride s from the one before.

    Only the last s targets of a window count, so each has at least W - s + 1 tokens of context; of
    the first window, all count. So every token except the first is a target exactly once. A stride
    of 1 gives every target a window of its own (figure 1b of Dai et al. 2019); a stride of W / 2 is
    the evaluation of models that were trained on the last half of each segment.

    Its segments are for an evaluator with a memory of 0 tokens.
    """

    def __init__(self, split: Tokens, *, n_lanes: int, tgt_len: int, stride: int):
        check_positive(n_lanes=n_lanes, stride=stride)
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


AnyLanes = EvaluationLanes | SlidingWindows
