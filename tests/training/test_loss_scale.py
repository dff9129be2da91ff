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

from txl_tf.training import loss_scale
from txl_tf.training.loss_scale import FIRST_SCALE

pytestmark = pytest.mark.slow

HALF = dataclasses.replace(TRAINING, precision="float16", learning_rate=1e-2)
MIXED = dataclasses.replace(MODEL, cutoffs=(7, 13), div_val=2)


def read_scale(trainer):
    return trainer.read_gauges()["loss_scale"]


def set_scale(trainer, value):
    trainer.optimizer.loss_scale.factor.assign(value)


# Not compiled with bins: XLA takes minutes over float16 on some CPUs.
@pytest.mark.parametrize(
    ("model", "jit"),
    [(MODEL, "none"), (MODEL, "whole"), (MIXED, "chains")],
    ids=["uncompiled", "compiled", "adaptive"],
)
def test_float16_trains_nearly_as_float32(jit, model, one_replica):
    config = dataclasses.replace(HALF, precision="float32")
    whole = run_steps(make_trainer(one_replica, model, config, jit=jit), [21])
    trainer = make_trainer(one_replica, model, HALF, jit=jit)
    half = run_steps(trainer, [21])
    # float16 has 11 bits, and 21 steps carry what they round off.
    np.testing.assert_allclose(half.nats, whole.nats, rtol=0.01)
    np.testing.assert_allclose(
        half.grad_norm[half.is_good], whole.grad_norm[half.is_good], rtol=0.05
    )
    assert trainer.memory.gather()[0].dtype == tf.float16
    assert all(weight.dtype == "float32" for weight in trainer.model.weights)


def test_the_scale_changes_no_gradient_that_float16_holds(one_replica):
    norms = []
    for factor in (2.0**6, 2.0**10):
        trainer = make_trainer(one_replica, MODEL, HALF)
        set_scale(trainer, factor)
        norms.append(run_steps(trainer, [1]).grad_norm[0])
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)  # but for the smallest


def test_gradients_too_large_are_skipped_and_halve_the_scale(one_replica):
    trainer = make_trainer(one_replica, MODEL, HALF)
    set_scale(trainer, 2.0**30)
    before = read_variables(trainer)
    interval = run_steps(trainer, [1])
    assert not interval.is_good[0]
    assert np.isfinite(interval.nats[0])
    assert read_scale(trainer) == 2.0**29
    after = read_variables(trainer)
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    assert changed == {"adam/iteration", "adam/loss_scale"}
    assert np.abs(read_memory(trainer)[1][0]).max() > 0  # the loss was finite: memory goes on


def test_good_steps_in_a_row_double_the_scale(one_replica, monkeypatch):
    monkeypatch.setattr(loss_scale, "GROWTH_STEPS", 3)
    trainer = make_trainer(one_replica, MODEL, HALF)
    set_scale(trainer, 4.0)
    scales = []
    for stop in range(1, 8):
        run_steps(trainer, [stop])
        scales.append(read_scale(trainer))
    assert scales == [4, 4, 8, 8, 8, 16, 16]


def test_a_skipped_step_starts_the_count_anew(one_replica, monkeypatch):
    monkeypatch.setattr(loss_scale, "GROWTH_STEPS", 2)
    trainer = make_trainer(one_replica, MODEL, HALF)
    set_scale(trainer, 4.0)
    run_steps(trainer, [1])
    set_scale(trainer, 2.0**30)
    run_steps(trainer, [2])
    set_scale(trainer, 4.0)
    run_steps(trainer, [3])
    assert read_scale(trainer) == 4
    run_steps(trainer, [4])
    assert read_scale(trainer) == 8


def test_gradients_too_large_on_one_replica_are_skipped_on_all(two_replicas):
    """Keras' own scaling asks the first replica alone, before the reduction."""
    trainer = make_trainer(two_replicas, MODEL, HALF)
    compute = trainer.compute_gradients

    def spoil(model, ids, targets, memory, **kwargs):
        nats, gradients, memory = compute(model, ids, targets, memory, **kwargs)
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        factor = tf.where(tf.equal(replica, 1), np.inf, 1.0)
        return nats, [gradient * factor for gradient in gradients], memory

    trainer.compute_gradients = spoil
    before = read_variables(trainer)
    interval = run_steps(trainer, [1])
    assert not interval.is_good[0]
    for weight in trainer.model.weights:
        for value in trainer.strategy.experimental_local_results(weight.value):
            np.testing.assert_array_equal(value.numpy(), before[weight.path])
    assert read_scale(trainer) == FIRST_SCALE / 2


def test_other_precisions_have_no_scale(one_replica):
    trainer = make_trainer(one_replica)
    assert trainer.optimizer.loss_scale is None
    assert "loss_scale" not in trainer.read_gauges()
