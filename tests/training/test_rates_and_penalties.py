"""A learning rate of its own for the tables and for a step, and L2 regularisation."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import txl_tf
from txl_tf.training.optimizers.choice import make_optimizer

KINDS = pytest.mark.parametrize("kind", ["adam", "adamw", "lamb"])
RATE = 0.1
VALUES = {
    "table_0": np.array([[1.0, -2.0], [0.5, 3.0]]),
    "kernel": np.array([[0.7, 0.1]]),
    "bias": np.array([5.0, -0.5, 0.0]),
}
GRADIENTS = [
    {"table_0": np.ones((2, 2)), "kernel": np.array([[0.2, -1.0]]), "bias": np.array([0.0, 1, 2])},
    {"table_0": np.eye(2), "kernel": np.array([[0.3, 0.5]]), "bias": np.array([-1.0, 1, 0])},
]


def run(kind="adam", *, factor=None, clip=100.0, gradients=GRADIENTS, **fields):
    """Returns what two steps change each weight by, and the optimizer."""
    config = txl_tf.TrainConfig(
        optimizer=kind, learning_rate=RATE, min_lr_ratio=1.0, clip=clip, **fields
    )
    weights = [keras.Variable(value, name=name, dtype="float32") for name, value in VALUES.items()]
    optimizer = make_optimizer(config)
    for each in gradients:
        optimizer.apply(
            [tf.constant(each[name], tf.float32) for name in VALUES],
            weights,
            rate_factor=None if factor is None else tf.constant(factor),
        )
    changes = {
        name: np.asarray(weight) - VALUES[name]
        for name, weight in zip(VALUES, weights, strict=True)
    }
    return changes, optimizer


def simulate_adam(gradients):
    """Returns what Adam changes weights by, in float64."""
    weights = {name: value.copy() for name, value in VALUES.items()}
    m, v = ({name: np.zeros_like(value) for name, value in VALUES.items()} for _ in range(2))
    for step, of_step in enumerate(gradients, 1):
        for name, compute in of_step.items():
            gradient = compute(weights[name])
            m[name] = 0.9 * m[name] + 0.1 * gradient
            v[name] = 0.999 * v[name] + 0.001 * gradient**2
            rate = RATE * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            weights[name] = weights[name] - rate * m[name] / (np.sqrt(v[name]) + 1e-8)
    return {name: weights[name] - VALUES[name] for name in weights}


def assert_same(found, expected, names=tuple(VALUES)):
    for name in names:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


@KINDS
def test_a_factor_scales_the_change_of_a_step(kind):
    one, half = (run(kind, factor=factor, gradients=GRADIENTS[:1])[0] for factor in (None, 0.5))
    assert_same(half, {name: 0.5 * change for name, change in one.items()})


@KINDS
def test_the_tables_have_a_rate_of_their_own(kind):
    plain, found = (
        run(kind, gradients=GRADIENTS[:1], embed_lr_ratio=ratio)[0] for ratio in (1.0, 2.0)
    )
    expected = plain | {"table_0": 2 * plain["table_0"]}
    assert_same(found, expected)


def test_l2_adds_to_the_clipped_gradients_of_all_weights():
    l2, clip = 0.3, 1.5
    steps = []
    for gradients in GRADIENTS:
        norm = np.sqrt(sum(np.sum(gradient**2) for gradient in gradients.values()))
        factor = min(1.0, clip / norm)
        steps.append(
            {
                name: lambda weight, clipped=factor * gradient: clipped + l2 * weight
                for name, gradient in gradients.items()
            }
        )
    assert_same(run(clip=clip, l2=l2)[0], simulate_adam(steps))


def test_a_skipped_step_has_no_penalty_either():
    bad = {name: np.full_like(value, np.nan) for name, value in VALUES.items()}
    changes, optimizer = run(l2=0.3, gradients=[bad])
    for name, change in changes.items():
        np.testing.assert_allclose(change, 0, atol=1e-6, err_msg=name)
    for slots in optimizer.slots:
        assert not np.any(slots.momentum)
        assert not np.any(slots.velocity)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"l2": -0.1}, r"`l2` must not be negative. Received: l2=-0.1"),
        ({"embed_lr_ratio": 0}, r"`embed_lr_ratio` must be positive. Received: embed_lr_ratio=0"),
    ],
)
def test_a_rate_that_cannot_be_is_an_error(fields, message):
    with pytest.raises(txl_tf.UserError, match=message):
        txl_tf.TrainConfig(**fields)
