import keras
import numpy as np
import pytest
import tensorflow as tf

import txl_tf
from txl_tf.errors import UserError
from txl_tf.training.schedule import make_schedule
from txl_tf.training.update_rules import make_optimizer


def make_rate(*, warmup_steps=7, train_steps=31):
    fields = {"learning_rate": 0.3, "min_lr_ratio": 0.05, "train_steps": train_steps}
    return make_schedule(txl_tf.TrainConfig(warmup_steps=warmup_steps, **fields))


def test_warm_up_is_linear_from_0_to_the_peak():
    rates = [float(make_rate()(step)) for step in range(32)]
    np.testing.assert_allclose(rates[:8], np.linspace(0, 0.3, 8), rtol=1e-5)  # float32
    assert np.argmax(rates) == 7


def test_without_warm_up_step_0_has_the_peak():
    assert float(make_rate(warmup_steps=0)(0)) == pytest.approx(0.3, rel=1e-6)  # float32


def test_halfway_the_cosine_is_halfway():
    assert float(make_rate()(7 + 12)) == pytest.approx(0.3 * (1 + 0.05) / 2, rel=1e-6)  # float32


@pytest.mark.parametrize("step", [31, 997])
def test_the_rate_ends_at_its_share_of_the_peak_and_stays(step):
    assert float(make_rate()(step)) == pytest.approx(0.3 * 0.05, rel=1e-5)  # float32


def test_a_warm_up_as_long_as_the_run_ends_at_the_peak():
    assert float(make_rate(warmup_steps=31)(31)) == pytest.approx(0.3, rel=1e-6)  # float32


def make_rates(**fields):
    """The rates of 31 steps, and of two more, of a schedule that ends at .05 of its peak."""
    shared = {"learning_rate": 0.3, "min_lr_ratio": 0.05, "train_steps": 31}
    schedule = make_schedule(txl_tf.TrainConfig(**shared, **fields))
    return np.array([float(schedule(step)) for step in range(33)])


@pytest.mark.parametrize("warmup_steps", [0, 7])
def test_a_linear_schedule_falls_from_the_peak_to_its_end(warmup_steps):
    rates = make_rates(schedule="linear", warmup_steps=warmup_steps)
    expected = np.linspace(0.3, 0.3 * 0.05, 31 - warmup_steps + 1)
    np.testing.assert_allclose(rates[warmup_steps:32], expected, rtol=1e-5)  # float32
    assert rates[32] == rates[31]


@pytest.mark.parametrize("schedule", ["linear", "wsd"])
def test_all_schedules_have_one_warm_up(schedule):
    fields = {"schedule": schedule, "decay_steps": 5 if schedule == "wsd" else 0}
    expected = make_rates(warmup_steps=7)[:8]
    np.testing.assert_array_equal(make_rates(warmup_steps=7, **fields)[:8], expected)


def test_wsd_stays_at_the_peak_and_falls_at_the_end():
    rates = make_rates(schedule="wsd", warmup_steps=7, decay_steps=11)
    np.testing.assert_allclose(rates[7:21], 0.3, rtol=1e-6)  # float32
    np.testing.assert_allclose(rates[20:32], np.linspace(0.3, 0.015, 12), rtol=1e-5)
    assert rates[32] == rates[31]


def make_constant_adam(*, clip):
    """Adam with a rate that does not change."""
    return make_optimizer(txl_tf.TrainConfig(learning_rate=0.1, min_lr_ratio=1.0, clip=clip))


def apply(optimizer, weight, gradients):
    for gradient in gradients:
        optimizer.apply([tf.constant(gradient, tf.float32)], [weight])


def read_first_moment(optimizer):
    (slots,) = optimizer.slots
    return slots.momentum


@pytest.mark.parametrize(("scale", "clipped"), [(0.2, 0.2), (13.0, 0.5)])
def test_a_norm_above_the_bound_is_clipped_to_it(scale, clipped):
    weight, optimizer = keras.Variable([0.0, 0.0]), make_constant_adam(clip=0.5)
    apply(optimizer, weight, [[0.6 * scale, -0.8 * scale]])
    moment = read_first_moment(optimizer).numpy()
    np.testing.assert_allclose(moment, [0.06 * clipped, -0.08 * clipped], rtol=1e-5)  # float32


def test_gradients_that_replicas_agree_on_are_not_added_up(two_replicas):
    with two_replicas.scope():
        weight, optimizer = keras.Variable([0.0, 0.0]), make_constant_adam(clip=1.0)
        optimizer.build([weight])
    step = tf.function(
        lambda: two_replicas.run(lambda: optimizer.apply([tf.constant([0.3, -0.4])], [weight]))
    )
    step()
    local = two_replicas.experimental_local_results(read_first_moment(optimizer).value)
    for moment in local:
        np.testing.assert_allclose(moment.numpy(), [0.03, -0.04], rtol=1e-6)  # float32


def test_an_optimizer_refuses_other_weights_than_those_it_was_built_for():
    weight, other = keras.Variable([0.0]), keras.Variable([0.0])
    optimizer = make_constant_adam(clip=1.0)
    apply(optimizer, weight, [[0.1]])
    with pytest.raises(UserError, match=r"the weights that it was built for\. Received: 1 weights"):
        apply(optimizer, other, [[0.1]])


def test_a_norm_that_is_given_decides_the_clipping():
    weight, optimizer = keras.Variable([0.0, 0.0]), make_constant_adam(clip=0.5)
    optimizer.apply([tf.constant([0.3, -0.4])], [weight], norm=tf.constant(2.0))
    moment = read_first_moment(optimizer).numpy()
    np.testing.assert_allclose(moment, [0.03 / 4, -0.04 / 4], rtol=1e-5)  # float32
