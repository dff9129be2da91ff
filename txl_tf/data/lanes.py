"""Cutting a split into lanes: batch rows whose text continues from one segment to the next.

Letters: B lanes, T tokens in a segment, n tokens in the split.
"""

import bisect
import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from txl_tf.config.stages import Stage, make_stages
from txl_tf.errors import UserError


class Tokens(Protocol):
    """The tokens of a split, which can be read at any position, such as a `Split`."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> np.ndarray:
        """Returns the ids from `start` up to `stop`, (stop - start,) int32."""

    @property
    def document_starts(self) -> np.ndarray:
        """The ascending positions at which documents begin, (k,) int64; empty if not known."""


def iterate_chunks(split: Tokens, chunk_len: int = 2**20) -> Iterator[np.ndarray]:
    """Yields all tokens of a split, in chunks of `chunk_len`, the last of which may be shorter."""
    for start in range(0, len(split), chunk_len):
        yield split.read(start, min(start + chunk_len, len(split)))


class _Stretch(NamedTuple):
    """Consecutive inputs in the split: segments of one lane in one epoch.

    Attributes:
        steps: The steps that read them, counted from the first step of the call.
        row: The row of the lane among the rows of the call.
        start: The position of the first input.
        stop: The position after the last input, which is that of the last target.
        is_first: Whether an epoch begins with the first input.
    """

    steps: slice
    row: int
    start: int
    stop: int
    is_first: bool


class TrainingLanes:
    """Training batches: B contiguous stretches of a split, read T tokens per step.

    Row b of a step continues where row b of the previous step ended, so memory carries over. An
    epoch reads B lanes of Lc = T * ((n - 1) // (B * T)) tokens each, and one token after them. It
    starts at an offset drawn for the epoch, so the few tokens that fill no segment are different
    ones in every epoch. Positions are a function of the step: reading can start at any step
    immediately, and only the step needs to be saved.

    With a schedule, T changes and the text continues over the change. Lc is then computed with the
    least common multiple of all lengths in place of T, so that an epoch ends with a complete
    segment of any length.

    Args:
        split: The tokens.
        n_lanes: B, the rows of a batch over all replicas.
        tgt_len: T, the tokens in a segment.
        tgt_len_schedule: Pairs of a step and the segment length up to that step. After the last of
            these steps, the length is `tgt_len`.
        seed: The seed of the epochs' offsets.

    Raises:
        UserError: If the split is too short to give each lane one segment of each length, or
            `make_stages` refuses the schedule.
    """

    def __init__(
        self,
        split: Tokens,
        *,
        n_lanes: int,
        tgt_len: int,
        tgt_len_schedule: tuple[tuple[int, int], ...] = (),
        seed: int = 0,
    ) -> None:
        check_positive(n_lanes=n_lanes, tgt_len=tgt_len)
        n_targets = max(len(split) - 1, 0)
        self.n_lanes = n_lanes
        self.tgt_len = tgt_len
        self.seed = seed
        self.stages = make_stages(tgt_len_schedule, tgt_len)
        unit = math.lcm(*(stage.tgt_len for stage in self.stages))
        self.lane_len = n_targets // (n_lanes * unit) * unit
        if self.lane_len == 0:
            if tgt_len_schedule:
                raise UserError(
                    f"`n_lanes` * {unit} must be below the number of tokens in the split; {unit} "
                    "is the least common multiple of `tgt_len` and the lengths in "
                    "`tgt_len_schedule`. "
                    f"Received: n_lanes={n_lanes}, tgt_len={tgt_len}, "
                    f"tgt_len_schedule={tgt_len_schedule}, {len(split)} tokens."
                )
            raise UserError(
                "`n_lanes` * `tgt_len` must be below the number of tokens in the split. "
                f"Received: n_lanes={n_lanes}, tgt_len={tgt_len}, {len(split)} tokens. "
                f"With {n_lanes} lanes, tgt_len can be at most {n_targets // n_lanes}."
            )
        self.steps_per_epoch = self.lane_len // tgt_len
        self._split = split
        self._n_spare = n_targets - n_lanes * self.lane_len

    @property
    def changes(self) -> tuple[int, ...]:
        """The steps at which the segment length changes, ascending."""
        return tuple(stage.first_step for stage in self.stages[1:])

    def read(self, step: int, n_steps: int = 1, rows: slice = slice(None)) -> np.ndarray:
        """Reads the segments of consecutive steps.

        Args:
            step: The first step, counted from the beginning of training over all epochs.
            n_steps: The number of steps, which must all have the same segment length.
            rows: The lanes to read; a worker reads only its own.

        Returns:
            The ids, (n_steps, rows, T + 1) int32: inputs are `[..., :-1]`, targets `[..., 1:]`.

        Raises:
            ValueError: If `step` is negative, `n_steps` is not positive, or the segment length
                changes within the steps.
            RecordError: If a record is damaged.
        """
        stage = self._find_stage(step, n_steps)
        lanes = range(*rows.indices(self.n_lanes))
        segments = np.empty((n_steps, len(lanes), stage.tgt_len + 1), np.int32)  # (steps, B, T + 1)
        for stretch in self._find_stretches(stage, step, n_steps, lanes):
            ids = self._split.read(stretch.start, stretch.stop + 1)
            # Neighbouring segments share a token: the last target is the next input.
            segments[stretch.steps, stretch.row, :-1] = ids[:-1].reshape(-1, stage.tgt_len)
            segments[stretch.steps, stretch.row, -1] = ids[stage.tgt_len :: stage.tgt_len]
        return segments

    def read_document_starts(
        self, step: int, n_steps: int = 1, rows: slice = slice(None)
    ) -> np.ndarray:
        """Tells which inputs do not continue the text that their lane read before.

        Args:
            step: As in `read`.
            n_steps: As in `read`.
            rows: As in `read`.

        Returns:
            (n_steps, rows, T) bool: true where a document begins and at the first input of an
            epoch, which is elsewhere in the text.

        Raises:
            ValueError: As in `read`.
        """
        stage = self._find_stage(step, n_steps)
        lanes = range(*rows.indices(self.n_lanes))
        starts = np.empty((n_steps, len(lanes), stage.tgt_len), bool)
        for stretch in self._find_stretches(stage, step, n_steps, lanes):
            found = find_document_starts(self._split, stretch.start, stretch.stop)
            found[0] |= stretch.is_first
            starts[stretch.steps, stretch.row] = found.reshape(-1, stage.tgt_len)
        return starts

    def _find_stage(self, step: int, n_steps: int) -> Stage:
        """Returns the stage of the steps, and checks that there is only one."""
        if step < 0:
            raise ValueError(f"`step` must not be negative. Received: step={step}")
        check_positive(n_steps=n_steps)
        first, last = (bisect.bisect(self.changes, each) for each in (step, step + n_steps - 1))
        if first != last:
            raise ValueError(
                "The steps of a call must have the same segment length, which changes at step "
                f"{self.changes[first]}. Received: step={step}, n_steps={n_steps}"
            )
        return self.stages[first]

    def _find_stretches(
        self, stage: Stage, step: int, n_steps: int, lanes: range
    ) -> Iterator[_Stretch]:
        """Yields the stretches of the split that the given steps of a stage read."""
        done = 0
        while done < n_steps:
            epoch, first = divmod(stage.count_tokens(step + done), self.lane_len)
            count = min(n_steps - done, (self.lane_len - first) // stage.tgt_len)
            offset = self._draw_offset(epoch) + first
            steps = slice(done, done + count)
            for row, lane in enumerate(lanes):
                start = offset + lane * self.lane_len
                yield _Stretch(steps, row, start, start + count * stage.tgt_len, first == 0)
            done += count

    def _draw_offset(self, epoch: int) -> int:
        """Returns the random position at which the first lane of an epoch starts."""
        generator = np.random.default_rng([self.seed, epoch])
        return int(generator.integers(0, self._n_spare, endpoint=True))


def find_document_starts(split: Tokens, start: int, stop: int) -> np.ndarray:
    """Tells which tokens from `start` up to `stop` begin a document, (stop - start,) bool."""
    positions = split.document_starts
    low, high = np.searchsorted(positions, (start, stop))
    is_start = np.zeros(stop - start, bool)
    is_start[positions[low:high] - start] = True
    return is_start


def check_positive(**values: int) -> None:
    """Checks that sizes are positive.

    Raises:
        ValueError: If a size is not positive.
    """
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"`{name}` must be positive. Received: {name}={value}")
