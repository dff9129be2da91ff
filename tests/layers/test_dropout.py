import keras
import numpy as np
import pytest
import tensorflow as tf
from tables import slow_after

from txl_tf.layers import Dropout, WordDropout
from txl_tf.layers.dropout import make_keep_mask
from txl_tf.models.transformer_xl import TransformerXL

ONES = np.ones((31, 37), "float32")

# Masks of a layer of attention: rows, heads, queries, keys.
SHAPE = (3, 5, 127, 257)
RATES = (0.02, 0.1, 0.5)
SEEDS = (0, 2**31 - 1)
N_DRAWS = 3
# In standard errors. The tests below look at up to 30,000 sums, the largest of which lies between 4
# and 5 for truly random masks; at small rates, whose sums are skewed, slightly above.
LARGEST_DEVIATION = 6.0


def test_a_rate_of_zero_drops_nothing_and_keeps_no_state():
    dropout = Dropout(0.0, seed=1)
    np.testing.assert_array_equal(dropout(ONES, training=True), ONES)
    assert dropout.variables == []


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_a_share_is_dropped_and_the_rest_scaled_up(rate):
    dropped = np.asarray(Dropout(rate, seed=1)(ONES, training=True))
    np.testing.assert_allclose(dropped[dropped != 0], 1 / (1 - rate), rtol=1e-6)
    # 1,147 draws: the share is known to 0.015 at one standard deviation.
    np.testing.assert_allclose(np.mean(dropped == 0), rate, rtol=0, atol=0.06)


def draw(seed, draw_index, rate):
    """Returns which entries are dropped, less the rate, over the deviation of one entry."""
    keep = make_keep_mask(SHAPE, rate, keras.ops.convert_to_tensor([seed, draw_index]))
    return (1.0 - keras.ops.convert_to_numpy(keep) - rate) / np.sqrt(rate * (1 - rate))


def correlate(one, other):
    """Returns the sum of the products in standard errors: about N(0, 1) if independent."""
    return np.vdot(one, other) / np.sqrt(one.size)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("seed", SEEDS)
def test_masks_drop_the_rate_in_every_row_and_column(seed, rate):
    for index in range(N_DRAWS):
        dropped = draw(seed, index, rate)
        for axes in ((0, 1, 2, 3), (1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2)):
            n_summed = np.prod([SHAPE[axis] for axis in axes])
            deviations = dropped.sum(axis=axes) / np.sqrt(n_summed)
            assert np.abs(deviations).max() < LARGEST_DEVIATION
            # The spread is that of independent draws: no row is more even than chance.
            if np.size(deviations) > 100:
                assert 0.75 < deviations.std() < 1.25


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("seed", SEEDS)
def test_neighbours_are_dropped_independently(seed, rate):
    for index in range(N_DRAWS):
        flat = draw(seed, index, rate).ravel()
        lags = {1, 2, 3, 4, 8, 16, 64, 256, 1024, SHAPE[-1], SHAPE[-1] + 1, SHAPE[-1] * SHAPE[-2]}
        for lag in lags:
            assert abs(correlate(flat[lag:], flat[:-lag])) < LARGEST_DEVIATION, lag


@pytest.mark.parametrize("rate", slow_after(1, RATES))
def test_masks_of_steps_layers_and_replicas_are_independent(rate):
    """Every pair of masks that a model draws: two replicas, three steps, all its layers."""
    config = {"n_token": 11, "n_layer": 2, "d_model": 6, "d_embed": 6, "n_head": 2, "d_head": 3}
    model = TransformerXL(TransformerXL.from_config({"config": config}).config, seed=3)
    masks = []
    for stream in (0, 1):
        for step in (0, 1, 1000):
            model.set_dropout_seed(step, stream=stream)
            for _ in range(4 * 2 + 3):
                first, second = keras.ops.convert_to_numpy(model.seed_generator.next())
                masks.append(draw(int(first), int(second), rate).ravel())
    table = np.stack(masks) / np.sqrt(masks[0].size)
    correlations = (table @ table.T)[np.triu_indices(len(masks), 1)] * np.sqrt(masks[0].size)
    assert len(correlations) == 66 * 65 // 2
    assert np.abs(correlations).max() < LARGEST_DEVIATION
    assert 0.9 < correlations.std() < 1.1


def test_the_same_seed_gives_the_same_mask_however_it_is_computed():
    seed = tf.constant([3, 5], tf.int64)

    def make(shape):
        return make_keep_mask(tf.unstack(shape), 0.5, seed)

    shape = tf.constant(SHAPE)
    expected = make_keep_mask(SHAPE, 0.5, seed)
    np.testing.assert_array_equal(tf.function(make)(shape), expected)
    compiled = tf.function(lambda: make_keep_mask(SHAPE, 0.5, seed), jit_compile=True)
    np.testing.assert_array_equal(compiled(), expected)


def test_a_rate_of_half_precision_is_kept_exactly():
    """The rate is that of the argument, not of its nearest bfloat16."""
    inputs = keras.ops.ones(SHAPE, "bfloat16")
    dropped = Dropout(0.1, seed=1, dtype="bfloat16")(inputs, training=True)
    share = np.mean(keras.ops.convert_to_numpy(keras.ops.equal(dropped, 0)))
    assert share == pytest.approx(0.1, abs=5 * np.sqrt(0.1 * 0.9 / np.prod(SHAPE)))


@pytest.mark.parametrize("layer", [Dropout, WordDropout])
@pytest.mark.parametrize("rate", [-0.5, 1.0, float("nan")])
def test_a_rate_out_of_its_range_is_refused(layer, rate):
    with pytest.raises(ValueError, match=r"`rate` must be in \[0, 1\). Received: rate="):
        layer(rate, seed=1)
