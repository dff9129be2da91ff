"""The metrics of consecutive training steps, and the planning of the calls that perform them."""

import collections
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np


class Interval(NamedTuple):
    """The metrics of n consecutive steps, each an array (n,); see also `StepResult`."""

    step: int  # the step count after the last of them
    nats: np.ndarray
    tokens: np.ndarray
    grad_norm: np.ndarray
    learning_rate: np.ndarray
    n_read: np.ndarray  # tokens, including those without a loss, but not extra context
    # Including the wait for segments. NaN if unknown: the call belonged to no `Pace`, or was
    # compiled first, so its duration says nothing about the speed.
    seconds: np.ndarray

    @property
    def is_good(self) -> np.ndarray:
        """Whether each step was taken, (n,) bool; steps with non-finite numbers are skipped."""
        return np.isfinite(self.nats) & np.isfinite(self.grad_norm)

    @property
    def loss(self) -> float:
        """The mean loss of the last step in nats."""
        return float(self.nats[-1] / self.tokens[-1])

    @property
    def tokens_per_second(self) -> float:
        """The speed of the steps whose duration is known; NaN if there are none."""
        is_known = np.isfinite(self.seconds)
        if not is_known.any():
            return math.nan
        return float(self.n_read[is_known].sum()) / float(self.seconds[is_known].sum())

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Joins consecutive intervals."""
        arrays = zip(*(part[1:] for part in parts), strict=True)
        return cls(parts[-1].step, *(np.concatenate(values) for values in arrays))


class Pace:
    """Plans the calls to the device: each ends at a stop, or after about `call_seconds`.

    A call also ends at each step in `changes`, where the shape of the segments changes. No call has
    more than `longest` steps. `Trainer.read_ahead` plans the calls, `Trainer.run` notes their
    durations.
    """

    def __init__(
        self, step: int, stops: Sequence[int], call_seconds: float, changes: Sequence[int] = ()
    ):
        self._step = step
        self._changes = {step, *changes}
        stops = sorted({*stops, *(each for each in changes if step < each < stops[-1])})
        self._stops = collections.deque(stops)
        self._call_seconds = call_seconds
        self._seconds_per_step = math.inf
        self._n_open = 0  # calls that are planned but not measured yet
        self._n_unknown = 0  # the number of coming measurements that say nothing about the speed
        bounds = itertools.pairwise((step, *stops))
        self.longest = max(stop - start for start, stop in bounds)

    @property
    def is_planned(self) -> bool:
        """Whether the last call has been planned."""
        return not self._stops

    def is_compiled(self, start: int) -> bool:
        """Returns whether the call that starts at a step is compiled before it runs."""
        return start in self._changes

    def plan(self) -> tuple[int, int]:
        """Returns the first step and the number of steps of the next call."""
        start, room = self._step, self._stops[0] - self._step
        if self.is_compiled(start):  # its duration includes compilation; earlier shapes differ
            self._seconds_per_step = math.inf
            self._n_unknown = self._n_open + 1
        self._n_open += 1
        if math.isfinite(self._call_seconds):
            room = min(room, max(1, int(self._call_seconds / self._seconds_per_step)))
        self._step += room
        if self._step == self._stops[0]:
            self._stops.popleft()
        return start, room

    def note(self, seconds: float, n_steps: int) -> None:
        """Records the duration of the oldest call that is not measured yet."""
        self._n_open -= 1
        if self._n_unknown:
            self._n_unknown -= 1
        else:
            self._seconds_per_step = seconds / n_steps
