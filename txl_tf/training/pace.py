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
        changes: steps at which the steps become others; no call goes beyond one.
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
        self._n_open = 0  # calls that were planned and are not measured yet
        self._n_unknown = 0  # of these and those to come, how many say nothing of the speed
        bounds = itertools.pairwise((step, *stops))
        self.longest = max(stop - start for start, stop in bounds)

    @property
    def is_planned(self) -> bool:
        """Whether the last call is planned."""
        return not self._stops

    def is_compiled(self, start: int) -> bool:
        """Tells whether the call that begins with a step is compiled before it is made."""
        return start in self._changes

    def plan(self) -> tuple[int, int]:
        """Returns the first step and the number of steps of the next call."""
        start, room = self._step, self._stops[0] - self._step
        if self.is_compiled(start):  # this call is compiled, and those before it were of others
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
        """Takes note of how long a call of some steps took."""
        self._n_open -= 1
        if self._n_unknown:
            self._n_unknown -= 1
        else:
            self._seconds_per_step = seconds / n_steps
