"""Runs whose segments have random lengths: the steps are those of segments cut by hand."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from small_runs import (
    BATCH,
    MODEL,
    TRAINING,
    make_lanes,
    make_trainer,
    run_steps,
)

import txl_tf
from txl_tf.runs.folder import RunConfig
from txl_tf.training.schedule import make_schedule
from txl_tf.training.step import compute_gradients

TGT_LEN, EXTRA_LEN, N_STEPS = 11, 3, 5
SHALLOW = dataclasses.replace(MODEL, n_layer=1)
CONFIG = dataclasses.replace(
    TRAINING,
    tgt_len=TGT_LEN,
    tgt_len_std=1.0,
    half_len_rate=0.5,
    extra_len=EXTRA_LEN,
    mem_len=0,
    ar=0.7,
    tar=1.3,
)


@pytest.mark.slow
def test_the_steps_are_those_of_segments_cut_by_hand(one_replica):
    """Losses, penalties, learning rates and updates."""
    lanes = make_lanes(CONFIG)
    lengths = lanes.read_lengths(0, N_STEPS)
    assert len(set(lengths)) > 2
    model = txl_tf.TransformerXL(SHALLOW, seed=CONFIG.seed)
    optimizer, schedule = txl_tf.training.make_optimizer(CONFIG), make_schedule(CONFIG)
    nats, rates = [], []
    for step, length in enumerate(lengths):
        segment = tf.constant(lanes.read(step)[0][:, : EXTRA_LEN + length + 1])
        assert segment.shape[1] == EXTRA_LEN + length + 1
        total, gradients, _ = compute_gradients(
            model,
            segment[:, :-1],
            segment[:, 1:],
            model.initial_memory(BATCH, 0),
            span=CONFIG.span,
            loss_start=EXTRA_LEN,
            ar=CONFIG.ar,
            tar=CONFIG.tar,
        )
        factor = length / TGT_LEN
        optimizer.apply(
            gradients, model.trainable_variables, rate_factor=tf.constant(factor, "float32")
        )
        nats.append(float(total))
        rates.append(float(schedule(step)) * factor)
    trainer = make_trainer(one_replica, SHALLOW, CONFIG)
    found = run_steps(trainer, [N_STEPS])
    np.testing.assert_array_equal(found.tokens, BATCH * lengths)
    np.testing.assert_array_equal(found.n_read, BATCH * lengths)
    # Sums over padded positions are rounded in another order, over some steps.
    np.testing.assert_allclose(found.nats, nats, rtol=1e-4)
    np.testing.assert_allclose(found.learning_rate, rates, rtol=1e-5)
    for weight, expected in zip(
        trainer.model.trainable_variables, model.trainable_variables, strict=True
    ):
        np.testing.assert_allclose(weight, expected, rtol=0, atol=2e-5, err_msg=weight.path)


def test_steps_in_parts_are_those_of_the_whole_batch(one_replica):
    """Each part has the share of its tokens that have a loss."""
    plain, found = (
        run_steps(make_trainer(one_replica, SHALLOW, config), [4])
        for config in (CONFIG, dataclasses.replace(CONFIG, accumulate_steps=2))
    )
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    np.testing.assert_allclose(found.nats, plain.nats, rtol=1e-5)
    np.testing.assert_allclose(found.grad_norm, plain.grad_norm, rtol=1e-4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mem_len": 3, "extra_len": 0}, r"`mem_len` must be 0 with random segment lengths.*=3"),
        ({"half_loss": True}, r"`half_loss` must be false with random segment lengths"),
        ({"tgt_len_schedule": ((2, 11),)}, r"`tgt_len_schedule` must be empty with random"),
        ({"tgt_len_std": 1.5}, r"`tgt_len` must leave every .* tgt_len=11, tgt_len_std=1.5, half"),
    ],
)
def test_lengths_that_cannot_be_are_an_error(fields, message):
    with pytest.raises(txl_tf.UserError, match=message):
        dataclasses.replace(CONFIG, **fields)


def test_an_lstm_reads_segments_of_fixed_length():
    model = txl_tf.ModelConfig(n_token=23, model_type="lstm")
    training = dataclasses.replace(CONFIG, extra_len=0)
    with pytest.raises(txl_tf.UserError, match=r"`tgt_len_std` must be 0 with model_type=lstm.*=1"):
        RunConfig("words", model, training, txl_tf.EvalConfig(mem_len=0))
