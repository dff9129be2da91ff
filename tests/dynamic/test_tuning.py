import dataclasses
import math

import pytest

from txl_tf.cli.dynamic_flags import choose_dynamic_config
from txl_tf.config import EvalConfig
from txl_tf.config.dynamic import DYNAMIC_RECIPES, DynamicConfig
from txl_tf.dynamic.adapting_model import DivergedError
from txl_tf.dynamic.tuning import climb, read_tuned, tune, write_tuned
from txl_tf.errors import UserError
from txl_tf.evaluate import define_flags
from txl_tf.evaluation.score import Score


class Valley:
    """An evaluator whose loss is lowest at a rate of 0.04 and a decay of 0.05."""

    def __init__(self, dynamic):
        self.dynamic = dynamic

    def set_rates(self, learning_rate, decay):
        self.dynamic = DynamicConfig(self.dynamic.rule, learning_rate, decay)

    def score_lanes(self, lanes, *, max_segments):
        rate, decay = self.dynamic.learning_rate, self.dynamic.decay
        if rate > 0.1:
            raise DivergedError("diverged")
        rate_loss = abs(math.log(rate / 0.04)) if rate else 9
        return Score(100 + rate_loss + abs(math.log((decay + 1e-6) / 0.05)) / 9, 1)


@pytest.mark.parametrize("rate", [0.01, 0.04, 0.15])
@pytest.mark.parametrize("decay", [0.003, 0.2])
def test_the_best_rates_are_found(rate, decay):
    evaluator = Valley(DynamicConfig("sgd", rate, decay))
    trials = tune(evaluator, None)
    assert trials[0].learning_rate == 0
    assert 0.028 < evaluator.dynamic.learning_rate < 0.057
    assert 0.025 <= evaluator.dynamic.decay <= 0.1
    found = (evaluator.dynamic.learning_rate, evaluator.dynamic.decay)
    assert min(trials, key=lambda trial: trial.nats)[:2] == found
    assert len({trial[:2] for trial in trials}) == len(trials)  # none is measured twice


def test_a_search_ends_at_the_last_value_in_its_direction():
    assert climb(lambda value: value, 1.0, 2.0) == 2.0**-8
    assert climb(lambda value: -value, 1.0, 2.0) == 2.0**8
    assert climb(lambda value: 0.0, 1.0, 2.0) == 1.0


def test_what_was_found_is_kept(tmp_path):
    run = str(tmp_path)
    assert read_tuned(run) is None
    dynamic = DynamicConfig("rms", 3e-5, 0.007)
    write_tuned(run, dynamic, EvalConfig(), split="valid")
    assert read_tuned(run) == dynamic
    (tmp_path / "dynamic" / "tuned.json").write_text('{"dynamic": 3}')
    with pytest.raises(UserError, match="must be an object"):
        read_tuned(run)


def test_fields_without_effect_are_refused():
    for field in ({"epsilon": 1e-3}, {"n_batches": 7}):
        with pytest.raises(UserError, match="has no effect with sgd"):
            DynamicConfig("sgd", 0.1, **field)


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


@pytest.mark.parametrize("rule", ["adam", ["sgd"]])
def test_an_unknown_rule_is_refused(rule):
    with pytest.raises(UserError, match="`rule` must be one of"):
        DynamicConfig(rule)


@pytest.mark.parametrize("field", ["learning_rate", "decay", "epsilon"])
def test_negative_rates_are_refused(field):
    with pytest.raises(UserError, match=f"`{field}` must"):
        DynamicConfig(**{field: -0.1})


def test_published_recipes_read_one_lane():
    for recipe in DYNAMIC_RECIPES.values():
        assert recipe.evaluation.eval_batch_size == 1
        assert recipe.dynamic.rule == "rms2019"
