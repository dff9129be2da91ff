"""Cutting a split into lanes: batch rows whose text continues from one segment to the next.

Letters: B lanes, T tokens in a segment, n tokens in the split.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from txl_tf.config.stages import Stage, find_longest, find_shortest, find_stage, make_stages
from txl_tf.errors import UserError, check_integer


class Tokens(Protocol):
    """The tokens of a split, such as a `Split`, which can be read at any position."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> np.ndarray:
        """Returns the ids from `start` up to `stop`, (stop - start,) int32."""

    @property
    def document_starts(self) -> np.ndarray:
        """The ascending positions at which documents begin, (k,) int64; empty if not known."""


class StoredTokens:
    """Tokens in memory, (n,) int32, with the interface of a split."""

    def __init__(self, ids: np.ndarray, document_starts: Sequence[int] | np.ndarray = ()):
        self._ids = ids
        self.document_starts = np.asarray(document_starts, np.int64)

    def __len__(self) -> int:
        return len(self._ids)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Returns the ids from `start` up to `stop`, (stop - start,) int32."""
        return self._ids[start:stop]


def store_tokens(split: Tokens, start: int, stop: int) -> StoredTokens:
    """Returns the tokens of a split from `start` up to `stop` or the end of the split."""
    stop = min(stop, len(split))
    starts = split.document_starts
    within = starts[(start <= starts) & (starts < stop)]
    return StoredTokens(split.read(start, stop), within - start)


class RandomLengths:
    """The segments of random lengths into which every lane of an epoch is cut.

    The length of a segment is the integer part of a number from N(tgt_len, std), or from
    N(tgt_len / 2, std) for a share `half_rate` of the segments; numbers are clipped to three
    standard deviations around the mean. The last segment of an epoch ends where the epoch does. All
    lanes are cut at the same places, and each epoch at different ones, drawn from the seed.

    The segment that a step reads depends on the number of segments in all earlier epochs, so these
    numbers are counted from the first epoch on, and kept.

    References:
        Merity et al. 2017, https://arxiv.org/abs/1708.02182, section 4.1.
    """

    def __init__(self, tgt_len: int, std: float, half_rate: float, *, lane_len: int, seed: int):
        self._tgt_len = tgt_len
        self._std = std
        self._half_rate = half_rate
        self._lane_len = lane_len
        self._seed = seed
        self._first_steps = [0]  # of each epoch
        self._latest: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int64))

    def find(self, step: int) -> tuple[int, np.ndarray]:
        """Returns the epoch of a step, and the bounds of its segments from that step on.

        The bounds, (n + 1,) int64, are positions in a lane: each segment ends where the next one
        begins, and the last one where the epoch does.
        """
        epoch = self._find_epoch(step)
        return epoch, self._draw_bounds(epoch)[step - self._first_steps[epoch] :]

    def count_segments(self, epoch: int) -> int:
        """Returns the number of segments of an epoch."""
        return len(self._draw_bounds(epoch)) - 1

    def _find_epoch(self, step: int) -> int:
        while self._first_steps[-1] <= step:
            epoch = len(self._first_steps) - 1
            self._first_steps.append(self._first_steps[-1] + self.count_segments(epoch))
        return int(np.searchsorted(self._first_steps, step, side="right")) - 1

    def _draw_bounds(self, epoch: int) -> np.ndarray:
        """Returns the bounds of the segments of an epoch, from 0 to the length of a lane."""
        if self._latest[0] != epoch:
            generator = np.random.default_rng([self._seed, epoch, 1])  # differs from the offset's
            ends = np.zeros(1, np.int64)
            while ends[-1] < self._lane_len:
                lengths = self._draw_lengths(generator)
                ends = np.concatenate([ends, ends[-1] + np.cumsum(lengths)])
            inside = ends[: np.searchsorted(ends, self._lane_len)]
            self._latest = epoch, np.append(inside, self._lane_len)
        return self._latest[1]

    def _draw_lengths(self, generator: np.random.Generator) -> np.ndarray:
        """Returns about as many lengths as an epoch needs."""
        count = self._lane_len // self._tgt_len + 1
        is_half = generator.random(count) < self._half_rate
        means = np.where(is_half, self._tgt_len / 2, self._tgt_len)
        reach = 3 * self._std
        drawn = np.clip(generator.normal(means, self._std), means - reach, means + reach)
        return drawn.astype(np.int64)


class TrainingLanes:
    """Training batches: B contiguous stretches of a split, read T tokens per step.

    Row b of a step continues where row b of the previous step ended, so memory carries over. An
    epoch reads B lanes of Lc = T * ((n - 1) // (B * T)) tokens each, and one token after them. It
    starts at an offset drawn for the epoch, so the few tokens that fill no segment differ between
    epochs. Positions depend only on the step: reading can start at any step immediately, and only
    the step needs to be saved.

    With a schedule, T changes and the text continues across the change. Lc is then computed with
    the least common multiple of all lengths in place of T, so that an epoch ends with a complete
    segment of any length.

    With extra context, a segment is read together with the `extra_len` tokens before it, which also
    belong to other segments. No lane begins within the first `extra_len` tokens of the split.

    Segments of random lengths are read with the text after them, up to the longest possible length,
    so that all arrays have the same shape; `read_lengths` returns the actual lengths. An epoch then
    reads Lc = (n - 1) // B tokens of each lane, and its last segment may be short.

    In the 2019 code: `batchify` and `get_input_fn`.

    Args:
        split: The tokens.
        n_lanes: B, the rows of a batch over all replicas.
        tgt_len: T, the tokens in a segment.
        tgt_len_schedule: Pairs of a step and the segment length up to that step. After the last of
            these steps, the length is `tgt_len`.
        seed: The seed of the epochs' offsets.
        extra_len: The number of tokens that are read before each segment.
        tgt_len_std: The standard deviation of random lengths; see `RandomLengths`.
        half_len_rate: The share of random lengths that are drawn around half of `tgt_len`.

    Raises:
        ValueError: If a size is not positive, a random length could be below 1, or the arguments of
            random lengths are out of range or given with a schedule.
        UserError: If the split is too short to give each lane one segment of each length, or
            `make_stages` rejects the schedule.
    """

    def __init__(
        self,
        split: Tokens,
        *,
        n_lanes: int,
        tgt_len: int,
        tgt_len_schedule: tuple[tuple[int, int], ...] = (),
        seed: int = 0,
        extra_len: int = 0,
        tgt_len_std: float = 0.0,
        half_len_rate: float = 0.0,
    ) -> None:
        check_integer("n_lanes", n_lanes, 1)
        check_integer("tgt_len", tgt_len, 1)
        check_integer("extra_len", extra_len, 0)
        is_random = tgt_len_std != 0 or half_len_rate != 0
        if is_random and (tgt_len_std < 0 or not 0 <= half_len_rate < 1 or tgt_len_schedule):
            raise ValueError(
                "random lengths need a `tgt_len_std` of at least 0, a `half_len_rate` from 0 to "
                f"below 1, and no `tgt_len_schedule`. Received: tgt_len_std={tgt_len_std}, "
                f"half_len_rate={half_len_rate}, tgt_len_schedule={tgt_len_schedule}"
            )
        if is_random and find_shortest(tgt_len, tgt_len_std, half_len_rate) < 1:
            raise ValueError(
                "`tgt_len` must leave each segment of a random length a token. Received: "
                f"tgt_len={tgt_len}, tgt_len_std={tgt_len_std}, half_len_rate={half_len_rate}"
            )
        n_targets = max(len(split) - 1 - extra_len, 0)
        self.extra_len = extra_len
        self.n_lanes = n_lanes
        self.tgt_len = tgt_len
        self.seed = seed
        self.stages = make_stages(tgt_len_schedule, tgt_len)
        unit = 1 if is_random else math.lcm(*(stage.tgt_len for stage in self.stages))
        self.lane_len = n_targets // (n_lanes * unit) * unit
        if self.lane_len < (tgt_len if is_random else 1):
            longest = max(unit, tgt_len)
            n_needed = n_lanes * longest + extra_len + 1
            segments = f"`tgt_len`={tgt_len}"
            if longest > tgt_len:
                segments = (
                    f"{longest}, the least common multiple of {segments} and the lengths in "
                    "`tgt_len_schedule`,"
                )
            raise UserError(
                f"the text is too short: `train_batch_size`={n_lanes} lanes with segments of "
                f"{segments} need at least {n_needed:,} tokens, and it has {len(split):,}"
            )
        self.steps_per_epoch = self.lane_len // tgt_len
        self.random_lengths: RandomLengths | None = None
        if is_random:
            self.random_lengths = RandomLengths(
                tgt_len, tgt_len_std, half_len_rate, lane_len=self.lane_len, seed=seed
            )
            self.steps_per_epoch = self.random_lengths.count_segments(0)
        self._n_behind = find_longest(tgt_len, tgt_len_std) - tgt_len
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
            The ids, (n_steps, rows, extra_len + T + 1) int32: inputs are `[..., :-1]`, targets
            `[..., 1:]`.

        Raises:
            ValueError: If `step` is negative, `n_steps` is not positive, or the segment length
                changes within the steps.
            RecordError: If a record is damaged.
        """

        def read_ids(start: int, stop: int, is_first: bool) -> np.ndarray:
            ids = self._split.read(start, min(stop, len(self._split)))
            # Zeros after the end of the split, where there is no segment.
            return np.pad(ids, (0, stop - start - len(ids)))

        # Neighboring segments share a token: the last target is the next input.
        return self._gather(step, n_steps, rows, read_ids, 1)  # (steps, B, T + 1)

    def read_lengths(self, step: int, n_steps: int = 1) -> np.ndarray:
        """Returns the lengths of the segments of consecutive steps, (n_steps,) int32.

        The arguments and errors are those of `read`.
        """
        located = self._locate(self._find_stage(step, n_steps), step, n_steps)
        return np.concatenate([np.diff(bounds) for _, bounds in located]).astype(np.int32)

    def count_tokens(self, step: int) -> int:
        """Returns the number of tokens that a lane has read before a step, in all epochs."""
        if not self.random_lengths:
            return find_stage(self.stages, step).count_tokens(step)
        epoch, bounds = self.random_lengths.find(step)
        return epoch * self.lane_len + int(bounds[0])

    def read_document_starts(
        self, step: int, n_steps: int = 1, rows: slice = slice(None)
    ) -> np.ndarray:
        """Returns which inputs do not continue the text that their lane read before; see `read`.

        Returns:
            (n_steps, rows, extra_len + T) bool: true where a document begins and, without extra
            context, at the first input of an epoch, which is elsewhere in the text.

        Raises:
            ValueError: As in `read`.
        """

        def find_starts(start: int, stop: int, is_first: bool) -> np.ndarray:
            found = find_document_starts(self._split, start, stop)
            found[0] |= is_first and not self.extra_len
            return found

        return self._gather(step, n_steps, rows, find_starts, 0)

    def _find_stage(self, step: int, n_steps: int) -> Stage:
        """Returns the stage of the steps, and checks that there is only one."""
        if step < 0:
            raise ValueError(f"`step` must not be negative. Received: step={step}")
        check_integer("n_steps", n_steps, 1)
        changes = [change for change in self.changes if step < change < step + n_steps]
        if changes:
            raise ValueError(
                "The steps of a call must have the same segment length, which changes at step "
                f"{changes[0]}. Received: step={step}, n_steps={n_steps}"
            )
        return find_stage(self.stages, step)

    def _gather(
        self,
        step: int,
        n_steps: int,
        rows: slice,
        read: Callable[[int, int, bool], np.ndarray],
        n_more: int,
    ) -> np.ndarray:
        """Returns the values of the steps' inputs and `n_more` following tokens, (steps, B, ...).

        `read` is called with the start and stop of a stretch of the split, which holds consecutive
        segments of a lane, and whether an epoch begins with it.
        """
        stage = self._find_stage(step, n_steps)
        lanes = range(*rows.indices(self.n_lanes))
        width = self.extra_len + stage.tgt_len + self._n_behind + n_more
        gathered = []
        for epoch, bounds in self._locate(stage, step, n_steps):
            # The extra context of the first segment begins here.
            offset = self._draw_offset(epoch) + int(bounds[0])
            offsets = bounds[:-1] - bounds[0]  # of the segments
            values = []
            for lane in lanes:
                start = offset + lane * self.lane_len
                stop = start + int(offsets[-1]) + width
                stretch = read(start, stop, bounds[0] == 0)
                values.append(sliding_window_view(stretch, width)[offsets])
            gathered.append(np.stack(values, axis=1))
        return np.concatenate(gathered)

    def _locate(self, stage: Stage, step: int, n_steps: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yields each epoch of the given steps of a stage, and the bounds of their segments.

        The bounds, (n + 1,) int64, are positions in a lane.
        """
        stop = step + n_steps
        while step < stop:
            if self.random_lengths:
                epoch, bounds = self.random_lengths.find(step)
                bounds = bounds[: stop - step + 1]
            else:
                epoch, first = divmod(stage.count_tokens(step), self.lane_len)
                count = min(stop - step, (self.lane_len - first) // stage.tgt_len)
                bounds = first + stage.tgt_len * np.arange(count + 1)
            yield epoch, bounds
            step += len(bounds) - 1

    def _draw_offset(self, epoch: int) -> int:
        """Returns the random position at which the first lane of an epoch starts."""
        generator = np.random.default_rng([self.seed, epoch])
        return int(generator.integers(0, self._n_spare, endpoint=True))


def find_document_starts(split: Tokens, start: int, stop: int) -> np.ndarray:
    """Returns which tokens from `start` up to `stop` begin a document, (stop - start,) bool."""
    positions = split.document_starts
    low, high = np.searchsorted(positions, (start, stop))
    is_start = np.zeros(stop - start, bool)
    is_start[positions[low:high] - start] = True
    return is_start
