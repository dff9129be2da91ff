"""Dynamic evaluation: its reader for a data set, and the search for its rates."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from txl_tf.config import EvalConfig
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.data.lanes.evaluation_lanes import EvaluationLanes
from txl_tf.data.records.reading import Records
from txl_tf.errors import UserError
from txl_tf.scoring.adapting_reader import AdaptingReader, DivergedError
from txl_tf.scoring.evaluator import Evaluator
from txl_tf.scoring.gradient_statistics import gather_statistics
from txl_tf.scoring.progress import Bar
from txl_tf.segment_model import SegmentModel

# The grid of a search: factors of the learning rate, then factors of the decay.
_RATE_FACTORS = (1 / 16, 1 / 4, 1 / 2, 1, 2, 4)
_DECAY_FACTORS = (0, 1 / 4, 4)
_ROUNDING = 1e-6  # of a loss; static and dynamic evaluation compute it in two ways


def make_adapting_reader(
    model: SegmentModel,
    config: EvalConfig,
    dynamic: DynamicConfig,
    records: Records | None,
    *,
    mask_empty_memory: bool = False,
    jit: str = "auto",
) -> AdaptingReader:
    """Returns a reader whose weights learn.

    If the rule needs the gradients of the training split, they are gathered from the records.

    Raises:
        UserError: If the config has a temperature, or the rule needs a training split and there
            is none, or it is too short.
    """
    if config.temperature != 1:
        raise UserError(
            "`temperature` must be 1 in dynamic evaluation: add `--temperature 1`, or set it in "
            f"the `evaluation` of the language model. Received: temperature={config.temperature}"
        )
    statistics = None
    if dynamic.has_statistics:
        if records is None or "train" not in records.splits:
            where = records.data_dir if records else "the run"
            raise UserError(
                f"rule={dynamic.rule} needs the gradients of the training split, and {where} has "
                "none: choose rule=sgd"
            )
        split, n_batches = records.split("train"), dynamic.n_batches
        with Bar("gradients of train", unit="segment", total=n_batches) as bar:
            statistics = gather_statistics(
                model, config, split, n_batches, jit=jit, report=lambda done: bar.update(1)
            )
    return AdaptingReader(
        model, config.span, dynamic, statistics, mask_empty_memory=mask_empty_memory, jit=jit
    )


class Trial(NamedTuple):
    """An evaluation of a search."""

    dynamic: DynamicConfig | None  # `None` for fixed weights
    nats: float  # the mean loss; infinite if the weights diverged


def search_rates(
    evaluator: Evaluator,
    lanes: EvaluationLanes,
    *,
    max_segments: int | None = None,
    report: Callable[[Trial], object] = lambda trial: None,
) -> list[Trial]:
    """Searches the learning rate and the decay with the lowest loss on a small grid, and sets them.

    First the learning rate is changed with the decay of the evaluator's reader, then the decay with
    the best learning rate. `report` is called after each evaluation.

    Returns:
        The evaluation with fixed weights, and then the others from the worst to the best.

    Raises:
        UserError: If none has a lower loss than with fixed weights.
    """
    reader = evaluator.reader
    assert isinstance(reader, AdaptingReader)
    first = reader.dynamic
    trials: list[Trial] = []

    def measure(dynamic: DynamicConfig | None) -> None:
        evaluator.reader = evaluator.frozen if dynamic is None else reader
        if dynamic is not None:
            reader.set_rates(dynamic)
        try:
            nats = evaluator.score_lanes(lanes, max_segments=max_segments).nats_per_token
        except DivergedError:
            nats = math.inf
        trials.append(Trial(dynamic, nats))
        report(trials[-1])

    measure(None)
    for factor in _RATE_FACTORS:
        measure(dataclasses.replace(first, learning_rate=first.learning_rate * factor))
    best = min(trials[1:], key=lambda trial: trial.nats).dynamic or first
    for factor in _DECAY_FACTORS if first.decay else ():
        if first.rule != "sgd" or first.decay * factor <= 1:
            measure(dataclasses.replace(best, decay=first.decay * factor))
    static, *others = trials
    others.sort(key=lambda trial: -trial.nats)
    if not others[-1].nats < static.nats * (1 - _ROUNDING):
        advice = ", or with a larger `epsilon`" if first.has_statistics else ""
        raise UserError(
            f"no rates that were tried give a lower loss than the static {static.nats:.5f} nats: "
            f"begin with another `learning_rate` or `decay`{advice}, or score more segments"
        )
    reader.set_rates(others[-1].dynamic or first)
    return [static, *others]
