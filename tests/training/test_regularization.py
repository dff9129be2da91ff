"""Activation regularization (AR) and its temporal form (TAR): in the gradients, not in the loss."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from small_runs import BATCH, MEM_LEN, MODEL, TGT_LEN, TRAINING

import txl_tf
from txl_tf.training.step import _penalize, compute_gradients

AR, TAR = 0.7, 1.3


def make_text(n_token=23):
    ids, targets = np.random.default_rng(5).integers(0, n_token, (2, BATCH, TGT_LEN))
    return tf.constant(ids, tf.int32), tf.constant(targets, tf.int32)


def take_gradients(model, memory, span, **options):
    """Returns the loss and the gradients of a step."""
    model.set_dropout_seed(3)
    nats, gradients, _ = compute_gradients(model, *make_text(), memory, span=span, **options)
    return nats, gradients


def test_the_penalty_is_that_of_the_definition():
    hidden = np.random.default_rng(3).normal(size=(3, 5, 7))
    expected = AR * np.mean(hidden**2) + TAR * np.mean((hidden[:, 1:] - hidden[:, :-1]) ** 2)
    found = _penalize(tf.constant(hidden, tf.float32), None, ar=AR, tar=TAR)
    assert float(found) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_first_positions_have_the_penalty_of_a_shorter_segment(count):
    """A single position, such as the last segment of an epoch may have, has no difference."""
    hidden = tf.constant(np.random.default_rng(3).normal(size=(3, 5, 7)), tf.float32)
    tar = TAR if count > 1 else 0.0
    expected = _penalize(hidden[:, :count], None, ar=AR, tar=tar)
    found = _penalize(hidden, tf.constant(count), ar=AR, tar=TAR)
    assert float(found) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize(("ar", "tar", "loss_start"), [(AR, TAR, 2), (AR, 0.0, 0)])
def test_the_penalty_changes_gradients_not_the_reported_loss(ar, tar, loss_start):
    """Its states are those before dropout."""
    dropping = txl_tf.TransformerXL(dataclasses.replace(MODEL, output_dropout=0.5), seed=3)
    plain = txl_tf.TransformerXL(MODEL, seed=3)
    memory, span = plain.initial_memory(BATCH, MEM_LEN), TRAINING.span
    with tf.GradientTape() as tape:
        hidden, _ = plain(make_text()[0], memory, span=span)
        states = hidden[:, loss_start:]
        penalty = ar * tf.reduce_mean(states**2)
        penalty += tar * tf.reduce_mean((states[:, 1:] - states[:, :-1]) ** 2)
    weights = plain.trainable_variables
    slopes = tape.gradient(penalty, [weight.value for weight in weights])
    given = (dropping, memory, span)
    nats, without = take_gradients(*given, loss_start=loss_start)
    found, gradients = take_gradients(*given, loss_start=loss_start, ar=ar, tar=tar)
    assert float(found) == float(nats)
    for weight, one, other, slope in zip(weights, gradients, without, slopes, strict=True):
        # The biases of the softmax have no part in the states.
        expected = 0 if slope is None else tf.convert_to_tensor(slope)
        np.testing.assert_allclose(one - other, expected, rtol=0, atol=1e-5, err_msg=weight.path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ar": -0.1}, r"`ar` must not be negative. Received: ar=-0.1"),
        ({"tar": float("nan")}, r"`tar` must be a finite number"),
        ({"tar": 0.1, "tgt_len": 2, "half_loss": True}, r"two positions .* half_loss=True"),
    ],
)
def test_a_penalty_that_cannot_be_is_an_error(fields, message):
    with pytest.raises(txl_tf.UserError, match=message):
        txl_tf.TrainConfig(**fields)
