import numpy as np
import pytest

from txl_tf.layers import DecoderLayer, make_attention_mask, make_position_table

BATCH, QUERIES, MEMORY, HEADS, HEAD_SIZE, WIDTH, INNER = 2, 3, 5, 7, 11, 10, 13


def make_layer(**arguments):
    layer = DecoderLayer(n_head=HEADS, d_head=HEAD_SIZE, d_inner=INNER, **arguments)
    layer.build((BATCH, QUERIES, WIDTH))
    rng = np.random.default_rng(5)
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(scale=0.5, size=variable.shape))
    return layer


def make_inputs():
    rng = np.random.default_rng(11)
    shapes = [(BATCH, QUERIES, WIDTH), (BATCH, MEMORY, WIDTH), (HEADS, HEAD_SIZE)]
    hidden, memory, bias = (rng.normal(size=shape).astype("float32") for shape in shapes)
    positions = make_position_table(MEMORY + QUERIES, WIDTH)
    return hidden, memory, positions, bias, -bias, make_attention_mask(QUERIES, MEMORY)


def normalize(states, norm, epsilon=1e-12):
    centered = states - states.mean(axis=-1, keepdims=True)
    scaled = centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + epsilon)
    return scaled * np.asarray(norm.gamma) + np.asarray(norm.beta)


def test_each_part_is_added_and_then_normalized():
    layer, inputs = make_layer(), make_inputs()
    hidden = normalize(inputs[0] + np.asarray(layer.attention(*inputs)), layer.attention_norm)
    hidden = normalize(hidden + np.asarray(layer.feed_forward(hidden)), layer.feed_forward_norm)
    np.testing.assert_allclose(layer(*inputs), hidden, rtol=0, atol=2e-5)  # float32, two sums


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 0.1])
def test_the_epsilon_is_added_to_the_variance_in_both_places(epsilon):
    layer, states = make_layer(layer_norm_epsilon=epsilon), 1e-3 * make_inputs()[0]
    for norm in (layer.attention_norm, layer.feed_forward_norm):
        expected = normalize(states, norm, epsilon)
        np.testing.assert_allclose(norm(states), expected, rtol=0, atol=1e-4)  # float32
