"""The rates of dynamic evaluation."""

import dataclasses

import pytest

from txl_tf.config.dynamic import DynamicConfig
from txl_tf.errors import UserError
from txl_tf.programs.evaluate import choose_dynamic_config, define_flags


@pytest.mark.parametrize(
    ("rule", "rates"),
    [
        ("rms", (1e-4, 0.01)),
        ("sgd", (0.1, 0.003)),
    ],
)
def test_rates_that_are_not_given_are_those_of_the_rule(rule, rates):
    config = DynamicConfig(rule)
    assert (config.learning_rate, config.decay) == rates
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
