import keras
import numpy as np
import pytest

from txl_tf.layers import Dropout

ONES = np.ones((31, 37), "float32")


def test_nothing_is_dropped_outside_training():
    np.testing.assert_array_equal(Dropout(0.5, seed=1)(ONES, training=False), ONES)


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


def test_a_seed_fixes_the_masks():
    first, second = (Dropout(0.5, seed=3)(ONES, training=True) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_layers_with_one_generator_draw_masks_of_their_own():
    generator = keras.random.SeedGenerator(3)
    first, second = (Dropout(0.5, seed=generator)(ONES, training=True) for _ in range(2))
    assert np.abs(first - second).max() > 0
    assert np.asarray(generator.state)[1] == 2


def test_a_layer_comes_back_from_its_config():
    config = Dropout(0.25).get_config()
    assert Dropout.from_config(config).get_config() == config
    assert config["rate"] == 0.25
