import dataclasses
import math

import pytest

from txl_tf.cli.dynamic_flags import choose_dynamic_config
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.errors import UserError
from txl_tf.evaluate import define_flags
from txl_tf.runs.array_store import ArrayStore
from txl_tf.scoring.adapting_model import DivergedError
from txl_tf.scoring.dynamic_search import climb, tune
from txl_tf.scoring.metrics import Score


class InterruptedSearchError(Exception):
    pass


class Valley:
    """An evaluator whose loss is lowest at a rate of 0.04 and a given decay."""

    def __init__(self, dynamic, *, best_decay=0.05, static=113.0, largest=(0.1, 9.0), folder=None):
        self.dynamic = dynamic
        self._best_decay = best_decay
        self._static = static
        self._largest = largest  # rate and decay above which it diverges
        self._store = ArrayStore(folder, {})
        self.n_left = math.inf  # until it is interrupted

    def open_search(self, lanes, max_segments):
        return self._store

    def set_rates(self, learning_rate, decay):
        self.dynamic = dataclasses.replace(self.dynamic, learning_rate=learning_rate, decay=decay)

    def score_lanes(self, lanes, *, max_segments):
        if not self.n_left:
            raise InterruptedSearchError
        self.n_left -= 1
        rate, decay = self.dynamic.learning_rate, self.dynamic.decay
        if not rate:
            return Score(self._static, 1)
        if rate > self._largest[0] or decay > self._largest[1]:
            raise DivergedError("diverged")
        decay_loss = abs(math.log((decay + 1e-6) / self._best_decay)) / 9
        return Score(100 + abs(math.log(rate / 0.04)) + decay_loss, 1)


@pytest.mark.parametrize(("rate", "decay"), [(0.01, 0.003), (0.15, 0.2), (1e6, 0.2)])
def test_the_best_rates_are_found(rate, decay):
    evaluator = Valley(DynamicConfig("sgd", rate, decay))
    trials = tune(evaluator, None)
    assert trials[0].learning_rate == 0
    assert 0.028 < evaluator.dynamic.learning_rate < 0.057
    assert 0.025 <= evaluator.dynamic.decay <= 0.1
    found = (evaluator.dynamic.learning_rate, evaluator.dynamic.decay)
    assert min(trials, key=lambda trial: trial.nats)[:2] == found
    assert len({trial[:2] for trial in trials}) == len(trials)  # none is measured twice


@pytest.mark.parametrize(("rate", "decay"), [(0.03, 3e4), (1e6, 3e4)])
def test_a_search_leaves_a_decay_with_which_every_rate_diverges(rate, decay):
    evaluator = Valley(DynamicConfig("rms2019", rate, decay))
    tune(evaluator, None)
    assert 0.028 < evaluator.dynamic.learning_rate < 0.057
    assert evaluator.dynamic.decay <= 9


def test_a_search_leaves_a_finite_loss_far_above_the_static_one():
    evaluator = Valley(DynamicConfig("sgd", 1e6), static=105.0, largest=(1e9, 1.0))
    tune(evaluator, None)
    assert 0.028 < evaluator.dynamic.learning_rate < 0.057


def test_a_decay_that_the_rule_refuses_is_not_measured():
    evaluator = Valley(DynamicConfig("sgd", 0.04, 0.3), best_decay=1.3)
    trials = tune(evaluator, None)
    assert evaluator.dynamic.decay == 0.3
    assert max(trial.decay for trial in trials) == 0.3
    assert all(math.isfinite(trial.nats) for trial in trials if trial.learning_rate <= 0.1)


@pytest.mark.parametrize(
    ("static", "largest"),
    [(99.0, (0.1, 9.0)), (100.00005, (0.1, 9.0)), (113.0, (0.0, 9.0))],
    ids=["better", "rounding", "diverged"],
)
def test_a_search_that_gains_nothing_is_refused(static, largest, tmp_path):
    evaluator = Valley(
        DynamicConfig("rms", 0.04, 0.05), static=static, largest=largest, folder=str(tmp_path)
    )
    evaluator.n_left = 33
    with pytest.raises(UserError, match=rf"the static {static:.5f} nats: begin with another"):
        tune(evaluator, None)
    assert not list(tmp_path.iterdir())


def test_an_interrupted_search_goes_on(tmp_path):
    dynamic = DynamicConfig("sgd", 0.15, 0.2)
    expected = tune(Valley(dynamic), None)
    evaluator = Valley(dynamic, folder=str(tmp_path))
    evaluator.n_left = 5
    with pytest.raises(InterruptedSearchError):
        tune(evaluator, None)
    again, seen = Valley(dynamic, folder=str(tmp_path)), []
    again.n_left = len(expected) - 5
    assert tune(again, None, report=seen.append) == seen == expected
    assert not again.n_left
    assert not list(tmp_path.iterdir())


def test_a_search_ends_at_the_last_value_in_its_direction():
    assert climb(lambda value: value, 1.0, 2.0) == 2.0**-8
    assert climb(lambda value: -value, 1.0, 2.0) == 2.0**8
    assert climb(lambda value: 0.0, 1.0, 2.0) == 1.0
    assert climb(lambda value: math.inf, 1.0, 2.0) == 1.0


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
    assert choose_dynamic_config(options, None) == config


def test_configs_that_were_stored_are_read():
    stored = {"rule": "sgd", "learning_rate": 1e-4, "decay": 0.01}
    stored |= {"epsilon": 3e-4, "n_batches": 200}
    assert DynamicConfig.from_json(stored).to_json() == stored
    assert DynamicConfig("sgd").to_json() == stored | {"learning_rate": 0.1, "decay": 0.003}


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
