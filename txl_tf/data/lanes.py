"""Cutting a split into lanes: rows of a batch that run on from one segment to the next.

Letters: B lanes, T tokens of a segment, n tokens of the split.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from txl_tf.errors import UserError


class Tokens(Protocol):
    """What lanes are cut from: a `Split`, or anything that can be read at any position."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> np.ndarray:
        """Returns the ids from `start` up to `stop`, (stop - start,) int32."""
        ...


class TrainingLanes:
    """Batches for training: B contiguous stretches of a split, read T tokens a step.

    Row b of a step goes on where row b of the step before ended, so that memory carries over.
    An epoch reads B lanes of Lc = T * ((n - 1) // (B * T)) tokens and the one token behind them;
    it starts at an offset drawn for the epoch, so that the tokens over, which fill no segment,
    are others in every epoch. All of it is arithmetic in the step: reading starts at any step at
    once, and nothing but the step needs to be saved.

    Args:
        split: The tokens.
        n_lanes: B, the rows of a batch over all replicas.
        tgt_len: T, the tokens of a segment.
        seed: Seed of the epochs' offsets.

    Raises:
        UserError: If the split is too short to give each lane one segment.
    """

    def __init__(self, split: Tokens, *, n_lanes: int, tgt_len: int, seed: int = 0) -> None:
        _check_positive(n_lanes=n_lanes, tgt_len=tgt_len)
        n_targets = max(len(split) - 1, 0)
        self.n_lanes = n_lanes
        self.tgt_len = tgt_len
        self.seed = seed
        self.steps_per_epoch = n_targets // (n_lanes * tgt_len)
        if self.steps_per_epoch == 0:
            raise UserError(
                "`n_lanes` * `tgt_len` must be below the tokens of the split. "
                f"Received: n_lanes={n_lanes}, tgt_len={tgt_len}, {len(split)} tokens. "
                f"{n_lanes} lanes leave room for tgt_len={n_targets // n_lanes}."
            )
        self._split = split
        self._lane_len = self.steps_per_epoch * tgt_len
        self._n_spare = n_targets - n_lanes * self._lane_len

    def read(self, step: int, n_steps: int = 1, rows: slice = slice(None)) -> np.ndarray:
        """Reads the segments of some steps.

        Args:
            step: The first step, counted from the start of training; steps run on over epochs.
            n_steps: How many steps.
            rows: The lanes to read; a worker reads only its own.

        Returns:
            The ids, (n_steps, rows, T + 1) int32: inputs are `[..., :-1]`, targets `[..., 1:]`.

        Raises:
            ValueError: If `step` is negative or `n_steps` is not positive.
            RecordError: If a record that was read is damaged.
        """
        if step < 0:
            raise ValueError(f"`step` must not be negative. Received: step={step}")
        _check_positive(n_steps=n_steps)
        lanes = range(*rows.indices(self.n_lanes))
        segments = np.empty((n_steps, len(lanes), self.tgt_len + 1), np.int32)  # (steps, B, T + 1)
        done = 0
        while done < n_steps:
            epoch, first = divmod(step + done, self.steps_per_epoch)
            count = min(n_steps - done, self.steps_per_epoch - first)
            offset = self._draw_offset(epoch) + first * self.tgt_len
            for row, lane in enumerate(lanes):
                start = offset + lane * self._lane_len
                ids = self._split.read(start, start + count * self.tgt_len + 1)
                # Neighbouring segments share a token: the last target is the next input.
                segments[done : done + count, row, :-1] = ids[:-1].reshape(count, self.tgt_len)
                segments[done : done + count, row, -1] = ids[self.tgt_len :: self.tgt_len]
            done += count
        return segments

    def _draw_offset(self, epoch: int) -> int:
        """Draws the position at which an epoch's first lane starts."""
        generator = np.random.default_rng([self.seed, epoch])
        return int(generator.integers(0, self._n_spare, endpoint=True))


class Segment(NamedTuple):
    """One step of an evaluation.

    Attributes:
        ids: The inputs, (B, T) int32.
        targets: The tokens one to the right, (B, T) int32.
        mask: Where `targets` counts, (B, T) bool; elsewhere ids and targets are 0.
    """

    ids: np.ndarray
    targets: np.ndarray
    mask: np.ndarray


class EvaluationLanes:
    """Segments for an evaluation: every token but the first is a target exactly once.

    The first has nothing before it. The n - 1 targets are cut into B lanes of equal length, the
    last ones shorter or, with many lanes, empty. What does not fill a segment is padded with 0
    and masked; padding comes only after the last target of its lane. Iterating reads the segments
    in order; `len` is their number.

    Args:
        split: The tokens.
        n_lanes: B, the rows of a batch over all replicas.
        tgt_len: T, the tokens of a segment.

    Raises:
        UserError: If the split has fewer than 2 tokens.
    """

    def __init__(self, split: Tokens, *, n_lanes: int, tgt_len: int) -> None:
        _check_positive(n_lanes=n_lanes, tgt_len=tgt_len)
        if len(split) < 2:
            raise UserError(
                f"`split` must have at least 2 tokens, a context and a target. "
                f"Received: {len(split)} tokens"
            )
        self.n_lanes = n_lanes
        self.tgt_len = tgt_len
        self._split = split
        self._n_targets = len(split) - 1
        self._lane_len = -(-self._n_targets // n_lanes)

    def __len__(self) -> int:
        return -(-self._lane_len // self.tgt_len)

    def __iter__(self) -> Iterator[Segment]:
        return (self._read_segment(index) for index in range(len(self)))

    def _read_segment(self, index: int) -> Segment:
        shape = (self.n_lanes, self.tgt_len)
        segment = Segment(
            np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, bool)
        )
        for lane in range(self.n_lanes):
            start = lane * self._lane_len + index * self.tgt_len
            end = min((lane + 1) * self._lane_len, self._n_targets)
            count = min(self.tgt_len, end - start)
            if count > 0:
                ids = self._split.read(start, start + count + 1)
                segment.ids[lane, :count] = ids[:-1]
                segment.targets[lane, :count] = ids[1:]
                segment.mask[lane, :count] = True
        return segment


def _check_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"`{name}` must be positive. Received: {name}={value}")
