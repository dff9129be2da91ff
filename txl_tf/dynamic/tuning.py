"""The search for the learning rate and the decay of dynamic evaluation."""

import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from txl_tf.config import EvalConfig
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.data.sliding_windows import AnyLanes
from txl_tf.dynamic.adapting_model import DivergedError
from txl_tf.dynamic.evaluator import DynamicEvaluator
from txl_tf.runs.files import exists, read_json, write_json

DYNAMIC_NAME = "dynamic"  # the folder in a run for what dynamic evaluation keeps
_TUNED_NAME = "tuned.json"
_RATE_FACTOR, _DECAY_FACTOR = 2.0, 4.0
_MAX_STEPS = 8  # of a search in one direction


class Trial(NamedTuple):
    """An evaluation of the search.

    Args:
        learning_rate: The learning rate; 0 for the static evaluation.
        decay: The decay.
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
    report: Callable[[Trial], object] | None = None,
) -> list[Trial]:
    """Searches the learning rate and the decay with the lowest loss, and sets them.

    The learning rate is doubled or halved as long as the loss falls. Then the decay is changed by
    factors of 4 in the same way, and 0 is tried. Then the learning rate is searched once more.

    Args:
        evaluator: The evaluator, with the settings to begin with.
        lanes: The lanes of the split.
        max_segments: The number of segments of each lane to score; `None` for all.
        report: Called after each evaluation.

    Returns:
        All evaluations, in order; the first is static.
    """
    first = evaluator.dynamic
    trials: dict[tuple[float, float], Trial] = {}

    def measure(rate: float, decay: float) -> float:
        if (rate, decay) not in trials:
            evaluator.set_rates(rate, decay)
            try:
                nats = evaluator.score_lanes(lanes, max_segments=max_segments).nats_per_token
            except DivergedError:
                nats = math.inf
            trials[rate, decay] = Trial(rate, decay, nats)
            if report:
                report(trials[rate, decay])
        return trials[rate, decay].nats

    measure(0.0, first.decay)
    rate = climb(lambda rate: measure(rate, first.decay), first.learning_rate, _RATE_FACTOR)
    decay = first.decay
    if decay:
        decay = climb(lambda decay: measure(rate, decay), decay, _DECAY_FACTOR)
    decay = min(decay, 0.0, key=lambda decay: measure(rate, decay))
    rate = climb(lambda rate: measure(rate, decay), rate, _RATE_FACTOR)
    evaluator.set_rates(rate, decay)
    return list(trials.values())


def climb(measure: Callable[[float], float], start: float, factor: float) -> float:
    """Returns the value from which a factor in neither direction lowers a measure.

    >>> climb(lambda value: abs(value - 9), 1.0, 2.0)
    8.0
    >>> climb(lambda value: value, 1.0, 2.0) == 2.0**-8
    True

    Args:
        measure: The measure of a value.
        start: The first value, positive.
        factor: The factor between values, above 1.
    """
    best = start
    for step in (factor, 1 / factor):
        for _ in range(_MAX_STEPS):
            if measure(best * step) >= measure(best):
                break
            best *= step
        if best != start:
            break
    return best


def write_tuned(run: str, dynamic: DynamicConfig, evaluation: EvalConfig, **facts: Any) -> None:
    """Writes the settings that a search has found into a run.

    Args:
        run: The run folder.
        dynamic: The settings.
        evaluation: The config of the evaluations.
        **facts: What else is worth knowing, for readers.

    Raises:
        UserError: If they cannot be written.
    """
    os.makedirs(os.path.join(run, DYNAMIC_NAME), exist_ok=True)
    content = {"dynamic": dynamic.to_json(), "evaluation": evaluation.to_json(), **facts}
    write_json(_name_tuned(run), content)


def read_tuned(run: str) -> DynamicConfig | None:
    """Returns the settings that a search has found for a run; `None` if there was none.

    Raises:
        UserError: If the file is damaged.
    """
    path = _name_tuned(run)
    if not exists(path):
        return None
    return DynamicConfig.from_json(read_json(path).get("dynamic"))


def _name_tuned(run: str) -> str:
    return os.path.join(run, DYNAMIC_NAME, _TUNED_NAME)
