"""Segment lengths that are drawn at random, as a function of the seed and the step."""

from collections.abc import Iterator

import numpy as np


class RandomLengths:
    """The segments of random lengths into which every lane of an epoch is cut.

    The length of a segment is the integer part of a number from N(tgt_len, std), or from
    N(tgt_len / 2, std) for a share `half_rate` of the segments; numbers are moved into three
    standard deviations around the mean. The last segment of an epoch ends where the epoch does. All
    lanes are cut at the same places, and every epoch at others, drawn from the seed.

    Which segment a step reads is known after the number of segments in each epoch before it, so
    these are counted, from the first epoch on, and kept.

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

    def locate(self, step: int, n_steps: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the epochs of consecutive steps and the bounds of their segments, (n + 1,) int64.

        The bounds are counted in the tokens of a lane: each segment ends where the next one begins.
        """
        stop = step + n_steps
        while step < stop:
            epoch = self._find_epoch(step)
            bounds = self._draw_bounds(epoch)
            first = step - self._first_steps[epoch]
            last = min(first + stop - step, len(bounds) - 1)
            yield epoch, bounds[first : last + 1]
            step += last - first

    def count_segments(self, epoch: int) -> int:
        """Returns the number of segments of an epoch."""
        return len(self._draw_bounds(epoch)) - 1

    def count_tokens(self, step: int) -> int:
        """Returns the number of tokens that a lane has read before a step."""
        ((epoch, bounds),) = self.locate(step, 1)
        return epoch * self._lane_len + int(bounds[0])

    def _find_epoch(self, step: int) -> int:
        while self._first_steps[-1] <= step:
            epoch = len(self._first_steps) - 1
            self._first_steps.append(self._first_steps[-1] + self.count_segments(epoch))
        return int(np.searchsorted(self._first_steps, step, side="right")) - 1

    def _draw_bounds(self, epoch: int) -> np.ndarray:
        """Returns the bounds of the segments of an epoch, from 0 to the length of a lane."""
        if self._latest[0] != epoch:
            generator = np.random.default_rng([self._seed, epoch, 1])  # not that of the offset
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
