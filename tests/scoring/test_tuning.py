import dataclasses
import math

import pytest
from small_cached_model import make_model

from txl_tf.config import EvalConfig
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.errors import UserError
from txl_tf.evaluate import choose_dynamic_config, define_flags
from txl_tf.scoring.dynamic_evaluation import AdaptingReader, DivergedError, search_rates
from txl_tf.scoring.evaluator import Evaluator
from txl_tf.scoring.metrics import Score


class Valley(Evaluator):
    """An evaluator whose loss is lowest at a rate of 0.04 and a decay of 0.05."""

    def __init__(self, dynamic, *, static=113.0, largest=(0.1, 9.0)):
        model, config = make_model(), EvalConfig(5, 7, eval_batch_size=1)
        reader = AdaptingReader(model, config.span, dynamic, jit="none")
        super().__init__(model, config, reader=reader)
        self._static = static
        self._largest = largest  # rate and decay above which it diverges

    def score_lanes(self, lanes, *, max_segments):
        dynamic = self.reader.dynamic
        if dynamic is None:
            return Score(self._static, 1)
        if dynamic.learning_rate > self._largest[0] or dynamic.decay > self._largest[1]:
            raise DivergedError("diverged")
        decay_loss = abs(math.log((dynamic.decay + 1e-6) / 0.05)) / 9
        return Score(100 + abs(math.log(dynamic.learning_rate / 0.04)) + decay_loss, 1)


@pytest.mark.parametrize(("rate", "decay"), [(0.02, 0.0125), (0.16, 0.2), (0.64, 0.05)])
def test_the_best_rates_are_found(rate, decay):
    evaluator, seen = Valley(DynamicConfig("sgd", rate, decay)), []
    static, *trials = search_rates(evaluator, None, report=seen.append)
    assert static == (None, 113.0)
    assert sorted(trials[-1].dynamic.to_json().items()) == sorted(
        DynamicConfig("sgd", 0.04, 0.05).to_json().items()
    )
    assert evaluator.reader.dynamic == trials[-1].dynamic
    assert trials[-1].nats == min(trial.nats for trial in seen)
    assert len({trial.dynamic for trial in seen}) == len(seen) == 1 + len(trials)


def test_a_decay_that_the_rule_refuses_is_not_measured():
    evaluator = Valley(DynamicConfig("sgd", 0.04, 0.3))
    assert max(trial.dynamic.decay for trial in search_rates(evaluator, None)[1:]) == 0.3


@pytest.mark.parametrize(
    ("static", "largest"),
    [(99.0, (0.1, 9.0)), (100.00005, (0.1, 9.0)), (113.0, (0.0, 9.0))],
    ids=["better", "rounding", "diverged"],
)
def test_a_search_that_gains_nothing_is_refused(static, largest):
    evaluator = Valley(DynamicConfig("sgd", 0.04, 0.05), static=static, largest=largest)
    with pytest.raises(UserError, match=rf"the static {static:.5f} nats: begin with another"):
        search_rates(evaluator, None)


@pytest.mark.parametrize(
    ("rule", "rates"),
    [
        ("rms", (1e-4, 0.01, 3e-4)),
        ("rms2019", (1.5e-5, 24.0, 1e-4)),
        ("sgd", (0.1, 0.003, 3e-4)),
    ],
)
def test_rates_that_are_not_given_are_those_of_the_rule(rule, rates):
    config = DynamicConfig(rule)
    assert (config.learning_rate, config.decay, config.epsilon) == rates
    assert dataclasses.replace(config, decay=0.5) == DynamicConfig(rule, decay=0.5)
    options = define_flags()
    options(["evaluate", "--dynamic", f"--dynamic_rule={rule}"])
    assert choose_dynamic_config(options) == config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rule": "sgd", "epsilon": 1e-3}, "has no effect with sgd"),
        ({"rule": ["sgd"]}, "`rule` must be one of"),
        ({"learning_rate": -0.1}, "`learning_rate` must"),
    ],
)
def test_fields_that_cannot_be_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        DynamicConfig(**fields)
