"""float16: small gradients kept by a scaled loss, large ones met by skipping and halving."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from small_runs import (
    MODEL,
    TRAINING,
    make_trainer,
    read_memory,
    read_variables,
    run_steps,
)

from txl_tf.training import optimizer
from txl_tf.training.optimizer import FIRST_SCALE

HALF = dataclasses.replace(TRAINING, precision="float16", learning_rate=1e-2)
SHALLOW = dataclasses.replace(MODEL, n_layer=1)


def read_scale(trainer):
    return trainer.read_gauges()["loss_scale"]


def set_scale(trainer, value):
    trainer.optimizer.loss_scale.factor.assign(value)


@pytest.fixture
def trainer(one_replica, monkeypatch):
    """What doubles its scale after two good steps in a row."""
    monkeypatch.setattr(optimizer, "GROWTH_STEPS", 2)
    return make_trainer(one_replica, SHALLOW, HALF)


def test_gradients_too_large_are_skipped_and_halve_the_scale(trainer):
    set_scale(trainer, 2.0**30)
    before = read_variables(trainer)
    interval = run_steps(trainer, [1])
    assert not interval.is_good[0]
    assert np.isfinite(interval.nats[0])
    assert read_scale(trainer) == 2.0**29
    after = read_variables(trainer)
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    assert changed == {"adam/iteration", "adam/loss_scale"}
    assert np.abs(read_memory(trainer)[0][0]).max() > 0  # the loss was finite: memory goes on


@pytest.mark.slow
def test_good_steps_in_a_row_double_the_scale(trainer):
    scales = []
    for step, factor in enumerate([4.0, 2.0**30, 4.0, None, None, None], 1):
        if factor:
            set_scale(trainer, factor)
        run_steps(trainer, [step])
        scales.append(read_scale(trainer))
    assert scales == [4, 2.0**29, 4, 8, 8, 16]  # the skipped step starts the count anew


@pytest.mark.slow
def test_gradients_too_large_on_one_replica_are_skipped_on_all(two_replicas):
    """Keras' own scaling asks the first replica alone, before the reduction."""
    trainer = make_trainer(two_replicas, SHALLOW, HALF)
    compute = trainer.train_step.compute

    def spoil(model, ids, targets, memory, **kwargs):
        nats, gradients, memory = compute(model, ids, targets, memory, **kwargs)
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        factor = tf.where(tf.equal(replica, 1), np.inf, 1.0)
        return nats, [gradient * factor for gradient in gradients], memory

    trainer.train_step.compute = spoil
    before = read_variables(trainer)
    interval = run_steps(trainer, [1])
    assert not interval.is_good[0]
    for weight in trainer.model.weights:
        for value in trainer.strategy.experimental_local_results(weight.value):
            np.testing.assert_array_equal(value.numpy(), before[weight.path])
    assert read_scale(trainer) == FIRST_SCALE / 2
