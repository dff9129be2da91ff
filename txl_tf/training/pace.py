"""The number of steps in each call of the device."""

import collections
import itertools
import math
from collections.abc import Sequence


class Pace:
    """Plans calls of the device that end at each stop or after about some seconds.

    Args:
        step: The first step.
        stops: Steps in ascending order at which a call ends.
        call_seconds: The approximate duration of a call.
        changes: Steps from which on the segments have another shape; a call ends at each of them.

    Attributes:
        longest: The largest number of steps that a call may have.
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
        self._n_unknown = 0  # how many of the next measurements say nothing about the speed
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
        if self.is_compiled(start):  # compilation is not speed, and earlier calls had other shapes
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
