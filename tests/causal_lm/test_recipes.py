"""The optimizer of a recipe makes the steps of the training programs."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_causal_lm import BATCH, CONFIG, MEMORY, make_lm, make_segments
from tables import slow_after

from txl_tf import TrainConfig, TransformerXL
from txl_tf.errors import UserError
from txl_tf.training import TrainStep, make_optimizer
from txl_tf.training.keras_optimizer import ConfigOptimizer

N_STEPS = 5
RECIPE = TrainConfig(
    optimizer="muon",
    learning_rate=0.02,
    schedule="linear",
    warmup_steps=3,
    train_steps=15,
    weight_decay=0.3,
    clip=0.2,
    train_batch_size=BATCH,
    mem_len=MEMORY,
)


@pytest.mark.parametrize("optimizer", slow_after(1, ["muon", "adamw", "adam"]))
def test_a_recipe_makes_the_steps_of_the_training_programs(optimizer):
    decay = {"weight_decay": 0.0} if optimizer == "adam" else {}
    recipe = dataclasses.replace(RECIPE, optimizer=optimizer, **decay)
    lm = make_lm(ConfigOptimizer(recipe))
    model, own = TransformerXL(CONFIG, seed=1), make_optimizer(recipe)
    for weight, other in zip(model.weights, lm.backbone.weights, strict=True):
        weight.assign(other)
    segments, memory = make_segments(), model.initial_memory(BATCH, MEMORY)
    step = TrainStep(model, own)
    for index in range(N_STEPS):
        ids, targets, _ = map(tf.constant, segments[index])
        _, memory = step(ids, targets, memory)
    lm.fit(segments, steps_per_epoch=N_STEPS, verbose=0)
    for one, other in zip(lm.backbone.weights, model.weights, strict=True):
        # Adam enlarges what rounding does to the smallest gradients. Without the decay of a weight
        # or with another momentum, more than .01 was found.
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4, err_msg=other.path)


@pytest.mark.slow
def test_weights_are_averaged_when_training_ends():
    recipe = dataclasses.replace(RECIPE, train_steps=100)
    lm = make_lm(ConfigOptimizer(dataclasses.replace(recipe, ema=0.5)))
    plain = make_lm(ConfigOptimizer(recipe))
    for each in (lm, plain):
        each.fit(make_segments(), verbose=0)
    assert np.abs(lm.backbone.weights[0] - plain.backbone.weights[0]).max() > 1e-3


@pytest.mark.slow
def test_a_recipe_comes_back_from_a_file(tmp_path):
    lm = make_lm(ConfigOptimizer(RECIPE), steps_per_execution=2)
    lm.fit(make_segments(), verbose=0)
    path = str(tmp_path / "lm.keras")
    lm.save(path)
    again = keras.saving.load_model(path)
    assert again.optimizer.training == RECIPE
    assert again.steps_per_execution == 2
    for each in (lm, again):
        each.fit(make_segments(), verbose=0)
    for one, other in zip(again.weights, lm.weights, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=other.path)


def test_a_preset_names_its_recipe():
    optimizer = make_lm().make_optimizer("demo")
    assert optimizer.training.optimizer == "muon"
    assert float(optimizer.learning_rate) == 0.0  # the first step of the warm-up


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "lamb"},
        {"l2": 0.1},
        {"ar": 1.0},
        {"accumulate_steps": 3},
        {"half_loss": True},
        {"reduce_dtype": "bfloat16"},
    ],
)
def test_a_recipe_that_fit_cannot_follow_is_refused_by_field(changes):
    (name,) = changes
    with pytest.raises(UserError, match=f"`fit` does not support {name}.*: use `txl train`"):
        ConfigOptimizer(TrainConfig(**changes))


def test_biases_of_other_layers_do_not_decay():
    recipe = dataclasses.replace(RECIPE, optimizer="adamw", warmup_steps=1)
    optimizer = ConfigOptimizer(recipe)
    bias, kernel = keras.Variable(np.ones(3)), keras.Variable(np.ones((3, 2)))
    for _ in range(3):
        optimizer.apply([np.zeros(3), np.zeros((3, 2))], [bias, kernel])
    assert (bias.numpy() == 1).all()
    assert (kernel.numpy() < 1).all()


def test_gradients_need_weights():
    with pytest.raises(ValueError, match="variables"):
        ConfigOptimizer(RECIPE).apply([np.zeros(3)])
