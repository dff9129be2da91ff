import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from small_runs import DROPPING, MODEL, N_TOKEN, TRAINING

import txl_tf

SHALLOW = dataclasses.replace(MODEL, n_layer=1)
ADAPTIVE = dataclasses.replace(SHALLOW, cutoffs=(13,), div_val=2)
SEGMENT = np.random.default_rng(11).integers(0, N_TOKEN, (3, 6)).astype(np.int32)
IDS, TARGETS = tf.constant(SEGMENT[:, :-1]), tf.constant(SEGMENT[:, 1:])


def take_step(config, *, traced=False, start=0, built=True, training=TRAINING):
    """Takes one step; returns its result and the model after it."""
    model = txl_tf.TransformerXL(config, seed=3)
    optimizer = txl_tf.training.make_optimizer(dataclasses.replace(training, warmup_steps=0))
    if built:
        optimizer.build(model.trainable_variables)
    optimizer.iterations.assign(start)
    memory = model.initial_memory(3, 7)
    train_step = txl_tf.training.TrainStep(model, optimizer)

    def step():
        return train_step(IDS, TARGETS, memory)

    result, _ = (tf.function(step, autograph=False) if traced else step)()
    return result, model


def test_an_eager_step_equals_a_traced_one_that_moves_every_weight():
    eager, (traced, after) = take_step(ADAPTIVE)[0], take_step(ADAPTIVE, traced=True)
    np.testing.assert_allclose(eager, traced, rtol=1e-5)  # operations are fused otherwise: float32
    before = txl_tf.TransformerXL(ADAPTIVE, seed=3)
    for old, new in zip(before.weights, after.weights, strict=True):
        assert np.abs(old.numpy() - new.numpy()).max() > 0, new.path


def test_a_traced_step_builds_an_optimizer_that_is_not():
    """With all that an optimizer may hold: a scale and averages."""
    training = dataclasses.replace(TRAINING, precision="float16", ema=0.9)
    runs = [
        take_step(SHALLOW, traced=True, built=built, training=training) for built in (True, False)
    ]
    np.testing.assert_array_equal(*(result for result, _ in runs))
    for one, other in zip(*(model.weights for _, model in runs), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy(), err_msg=one.path)


def test_the_norm_is_that_of_the_gradients_of_the_mean_loss():
    model = txl_tf.TransformerXL(SHALLOW, seed=3)
    with tf.GradientTape() as tape:
        hidden, _ = model(IDS, model.initial_memory(3, 7), span=TRAINING.span)
        loss = tf.reduce_mean(model.nll(hidden, TARGETS))
    gradients = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
    norm = np.sqrt(sum(np.sum(np.square(tf.convert_to_tensor(each))) for each in gradients))
    # Sums in another order, float32.
    assert float(take_step(SHALLOW)[0].grad_norm) == pytest.approx(norm, rel=1e-5)


def test_the_step_decides_the_masks_whatever_was_drawn_before():
    config = dataclasses.replace(DROPPING, n_layer=1)
    losses = [float(take_step(config, start=start)[0].nats) for start in (5, 5, 6)]
    assert losses[0] == losses[1] != losses[2]


def test_rows_that_do_not_divide_and_an_unknown_mode_are_refused():
    model = txl_tf.TransformerXL(SHALLOW, seed=3)
    parted = dataclasses.replace(TRAINING, accumulate_steps=2)
    step = txl_tf.training.TrainStep(model, txl_tf.training.make_optimizer(parted))
    memory = model.initial_memory(3, 7)
    for call in (step, tf.function(step)):
        with pytest.raises(ValueError, match=r"divisible by `accumulate_steps`. Received: 3 rows"):
            call(IDS, TARGETS, memory)
    with pytest.raises(ValueError, match=r"`jit` must be one of .* Received: jit='auto'"):
        txl_tf.training.make_optimizer(TRAINING, jit="auto")
