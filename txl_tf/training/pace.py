"""How many steps to make in a call of the device."""

import collections
import itertools
import math
from collections.abc import Sequence


class Pace:
    """Plans the calls of the device: to each stop, but no longer than some seconds.

    Args:
        step: where to begin.
        stops: ascending steps.
        call_seconds: about how long a call may take.
    """

    def __init__(self, step: int, stops: Sequence[int], call_seconds: float):
        self._step = step
        self._stops = collections.deque(stops)
        self._call_seconds = call_seconds
        self._seconds_per_step = math.inf  # nothing is known of the first calls
        self._n_measured = 0
        bounds = itertools.pairwise((step, *stops))
        self.longest = max(stop - start for start, stop in bounds)

    @property
    def is_planned(self) -> bool:
        """Whether the last call is planned."""
        return not self._stops

    def plan(self) -> tuple[int, int]:
        """Returns the first step and the number of steps of the next call."""
        start, room = self._step, self._stops[0] - self._step
        if math.isfinite(self._call_seconds):
            room = min(room, max(1, int(self._call_seconds / self._seconds_per_step)))
        self._step += room
        if self._step == self._stops[0]:
            self._stops.popleft()
        return start, room

    def note(self, seconds: float, n_steps: int) -> None:
        """Takes note of how long a call of some steps took."""
        self._n_measured += 1
        if self._n_measured > 1:  # the first one was compiled
            self._seconds_per_step = seconds / n_steps
