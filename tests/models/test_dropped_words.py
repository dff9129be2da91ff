"""States of zeros, which begin a segment whose first words are dropped."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_model import make_config
from tables import slow_after

from txl_tf.config import AttentionSpan
from txl_tf.layers.fused.fused_dense import add_and_normalize
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.training.step import compute_gradients

SPAN = AttentionSpan(0)


def differentiate(states, *, has_empty):
    """Returns the output of a norm and its gradient for its input."""
    norm = keras.layers.LayerNormalization(epsilon=1e-12)
    norm.build(states.shape)
    norm.gamma.assign(np.linspace(0.5, 2, states.shape[-1]))
    factors = np.random.default_rng(5).normal(size=states.shape)
    states = tf.constant(states, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(states)
        outputs = add_and_normalize(states, tf.zeros_like(states), None, norm, has_empty=has_empty)
        total = tf.reduce_sum(outputs * factors)
    return outputs.numpy(), tape.gradient(total, states).numpy()


def test_a_state_of_zeros_passes_no_gradient_and_others_pass_theirs():
    states = np.random.default_rng(3).normal(size=(2, 5, 7))
    states[0, 0] = states[1, 3] = 0
    (plain, slopes), (found, gradients) = (
        differentiate(states, has_empty=has_empty) for has_empty in (False, True)
    )
    np.testing.assert_array_equal(found, plain)
    is_empty = (states == 0).all(axis=-1)
    assert np.abs(slopes[is_empty]).max() > 1e5
    assert not gradients[is_empty].any()
    np.testing.assert_array_equal(gradients[~is_empty], slopes[~is_empty])


@pytest.mark.parametrize(
    ("dtype", "jit"),
    slow_after(1, [("float32", False), ("mixed_bfloat16", False), ("float32", True)]),
)
def test_a_new_model_of_several_layers_has_finite_gradients(dtype, jit):
    """Its biases are zeros, and the first word of each row is one that is dropped."""
    config = make_config(n_layer=3, word_dropout=0.5, dropout=0.1)
    model = TransformerXL(config, seed=3, dtype=dtype)
    ids = tf.random.stateless_uniform((3, 5), (1, 2), 0, 23, tf.int32)
    _, memory = model(ids, model.initial_memory(3, 5), span=AttentionSpan(5), training=True)
    is_empty = np.asarray(tf.reduce_all(memory[1] == 0, axis=-1))
    assert is_empty.any()  # in the second layer, too
    model.set_dropout_seed(0)
    compute = tf.function(compute_gradients, jit_compile=jit, autograph=False)
    _, gradients, _ = compute(model, ids, ids, model.initial_memory(3, 0), span=SPAN)
    norm = float(tf.linalg.global_norm([tf.cast(gradient, tf.float32) for gradient in gradients]))
    assert 1e-3 < norm < 1e3
