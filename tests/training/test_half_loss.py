"""With `half_loss` only the last half of each segment's positions has a loss."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from small_runs import BATCH, MEM_LEN, MODEL, TGT_LEN, TRAINING, make_trainer, run_steps

import txl_tf
from txl_tf.training.step import compute_gradients

HALF = dataclasses.replace(TRAINING, half_loss=True)
N_SCORED = TGT_LEN - TGT_LEN // 2


def test_loss_and_gradients_are_those_of_the_last_half():
    model = txl_tf.TransformerXL(MODEL, seed=3)
    ids, targets = tf.constant(np.random.default_rng(5).integers(0, 23, (2, BATCH, TGT_LEN)))
    ids, targets = tf.cast(ids, tf.int32), tf.cast(targets, tf.int32)
    memory = model.initial_memory(BATCH, MEM_LEN)
    with tf.GradientTape() as tape:
        hidden, _ = model(ids, memory, span=TRAINING.span)
        nats = model.nll(hidden, targets)[:, -N_SCORED:]
        loss = tf.reduce_mean(nats)
    weights = model.trainable_variables
    expected = tape.gradient(loss, [weight.value for weight in weights])
    found, gradients, _ = compute_gradients(
        model, ids, targets, memory, span=TRAINING.span, loss_start=TGT_LEN // 2
    )
    assert float(found) == pytest.approx(float(tf.reduce_sum(nats)), rel=1e-5)
    for weight, one, other in zip(weights, gradients, expected, strict=True):
        np.testing.assert_allclose(
            one, tf.convert_to_tensor(other), rtol=1e-4, atol=1e-5, err_msg=weight.path
        )


def test_a_step_counts_the_tokens_with_a_loss_and_those_read(one_replica):
    model = dataclasses.replace(MODEL, n_layer=1)
    half = run_steps(make_trainer(one_replica, model, HALF), [1])
    np.testing.assert_array_equal(half.tokens, [BATCH * N_SCORED])
    np.testing.assert_array_equal(half.n_read, [BATCH * TGT_LEN])
    # A guess costs log 23 = 3.1: a sum over all 5 positions would be above 5 times these tokens.
    assert half.nats[0] < 4.5 * half.tokens[0]
