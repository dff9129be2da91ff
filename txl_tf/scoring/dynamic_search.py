"""The search for the learning rate and the decay of dynamic evaluation."""

import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from txl_tf.data.lanes.sliding_windows import AnyLanes
from txl_tf.errors import UserError
from txl_tf.runs.array_store import ArrayStore
from txl_tf.scoring.adapting_model import DivergedError
from txl_tf.scoring.dynamic_evaluator import DynamicEvaluator

_RATE_FACTOR, _DECAY_FACTOR = 2.0, 4.0
_MAX_STEPS = 8  # of a search in one direction
_FALL_POWER = 4  # of the factor, while values are far too large
_ROUNDING = 1e-6  # of a loss; static and dynamic evaluation compute it in two ways
_NAME = "trials"


class Trial(NamedTuple):
    """An evaluation of the search.

    Args:
        learning_rate: The learning rate; 0 for the static evaluation.
        decay: The decay; 0 for the static evaluation.
        nats: The mean loss in nats; infinite if the weights diverged.
    """

    learning_rate: float
    decay: float
    nats: float


def tune(
    evaluator: DynamicEvaluator,
    lanes: AnyLanes,
    *,
    max_segments: int | None = None,
    report: Callable[[Trial], object] = lambda trial: None,
) -> list[Trial]:
    """Searches the learning rate and the decay with the lowest loss, and sets them.

    The learning rate is divided by 16 until the loss is lower than that of the static evaluation,
    and then doubled or halved as long as the loss falls. Then the decay is changed by factors of 4
    as long as it falls, and 0 is tried. Then the learning rate is searched once more. What an
    interrupted search has measured is not measured again.

    Args:
        evaluator: The evaluator, with the settings to begin with.
        lanes: The lanes of the split.
        max_segments: The number of segments of each lane to score; `None` for all.
        report: Called after each evaluation.

    Returns:
        All evaluations, in order; the first is static.

    Raises:
        UserError: If none has a lower loss than the static one.
    """
    first = evaluator.dynamic
    store = evaluator.open_search(lanes, max_segments)
    trials = _load_trials(store)
    for trial in trials.values():
        report(trial)

    def measure(rate: float, decay: float) -> float:
        if (rate, decay) not in trials:
            try:
                evaluator.set_rates(rate, decay)
            except UserError:
                return math.inf  # the rule does not allow them
            try:
                nats = evaluator.score_lanes(lanes, max_segments=max_segments).nats_per_token
            except DivergedError:
                nats = math.inf
            trials[rate, decay] = Trial(rate, decay, nats)
            store.save(_NAME, {_NAME: np.array(list(trials.values()))})
            report(trials[rate, decay])
        return trials[rate, decay].nats

    static = measure(0.0, 0.0)
    limit = static * (1 - _ROUNDING)
    rate, decay = first.learning_rate, first.decay
    rate = climb(lambda rate: measure(rate, decay), rate, _RATE_FACTOR, limit)
    if decay:
        decay = climb(lambda decay: measure(rate, decay), decay, _DECAY_FACTOR)
    decay = min(0.0, decay, key=lambda decay: measure(rate, decay))
    climb(lambda rate: measure(rate, decay), rate, _RATE_FACTOR)
    store.remove(_NAME)
    best = min(trials.values(), key=lambda trial: trial.nats)
    if not best.nats < limit:
        advice = ", or with a larger `epsilon`" if first.has_statistics else ""
        raise UserError(
            f"no rates that were tried give a lower loss than the static {static:.5f} nats: begin "
            f"with another `learning_rate` or `decay`{advice}, or score more segments"
        )
    evaluator.set_rates(best.learning_rate, best.decay)
    return list(trials.values())


def _load_trials(store: ArrayStore) -> dict[tuple[float, float], Trial]:
    """Returns the evaluations of an interrupted search, by their rates."""
    arrays = store.load(_NAME)
    if arrays is None:
        return {}
    trials = [Trial(*row) for row in arrays[_NAME].tolist()]
    print(f"Going on after {len(trials)} evaluations of an interrupted search.", file=sys.stderr)
    return {(trial.learning_rate, trial.decay): trial for trial in trials}


def climb(
    measure: Callable[[float], float], start: float, factor: float, limit: float = math.inf
) -> float:
    """Returns the value from which a factor in neither direction lowers a measure.

    A value whose measure is not below a limit is taken to be far too large: it is divided by the
    fourth power of the factor until the measure is below.

    >>> climb(lambda value: abs(value - 9), 1.0, 2.0)
    8.0
    >>> climb(lambda value: value, 1.0, 2.0) == 2.0**-8
    True
    >>> climb(lambda value: abs(value - 9) if value < 99 else math.inf, 1024.0, 2.0)
    8.0

    Args:
        measure: The measure of a value.
        start: The first value, positive.
        factor: The factor between values, above 1.
        limit: The limit.

    Returns:
        The value. If no measure is below the limit, the value with the lowest; if none is finite,
        `start`.
    """
    falls = [start / factor ** (_FALL_POWER * count) for count in range(_MAX_STEPS + 1)]
    low = next((value for value in falls if measure(value) < limit), None)
    if low is None:
        return min(falls, key=measure)
    best = low
    for step in (factor, 1 / factor):
        for _ in range(_MAX_STEPS):
            if measure(best * step) >= measure(best):
                break
            best *= step
        if best != low:
            break
    return best
