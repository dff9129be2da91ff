"""Locked dropout, with one mask for all positions of a row, and dropout of whole words."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from txl_tf.layers import Dropout, RelativeAttention, WordDropout
from txl_tf.layers.attention import join_memory
from txl_tf.layers.dropout import make_index_mask, make_keep_mask

ROWS, POSITIONS, WIDTH = 3, 7, 31
ONES = np.ones((ROWS, POSITIONS, WIDTH), "float32")
SEED = tf.constant([3, 5], tf.int64)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_positions_of_a_row_have_one_mask_and_rows_have_others(dtype):
    dropout = Dropout(0.5, is_locked=True, seed=1, dtype=dtype)
    dropped = np.asarray(tf.cast(dropout(tf.cast(ONES, dtype), training=True), tf.float32))
    assert set(dropped.ravel()) == {0.0, 2.0}
    np.testing.assert_array_equal(dropped, np.repeat(dropped[:, :1], POSITIONS, axis=1))
    assert all((dropped[row] != dropped[row - 1]).any() for row in range(ROWS))


def test_the_gradient_has_the_mask_of_the_output():
    inputs, factors = tf.Variable(ONES), np.random.default_rng(7).normal(size=ONES.shape)
    with tf.GradientTape() as tape:
        dropped = Dropout(0.5, is_locked=True, seed=1)(inputs, training=True)
        total = tf.reduce_sum(dropped * factors)
    expected = np.asarray(dropped) * factors  # of ones: the outputs are the slopes
    np.testing.assert_allclose(tape.gradient(total, inputs), expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(23,), (1009,)])
def test_an_index_has_the_entry_of_the_mask(shape):
    indices = np.random.default_rng(5).integers(shape[0], size=(ROWS, POSITIONS))
    mask = np.asarray(make_keep_mask(shape, 0.5, SEED))
    np.testing.assert_array_equal(make_index_mask(indices, 0.5, SEED), mask[indices])


def test_a_dropped_word_is_dropped_wherever_it_stands_and_others_are_scaled():
    ids = np.random.default_rng(5).integers(11, size=(ROWS, POSITIONS))
    inputs = tf.Variable(ONES)
    with tf.GradientTape() as tape:
        dropped = WordDropout(0.25, seed=2)(inputs, ids, training=True)
    factors = np.asarray(dropped)[..., 0]
    np.testing.assert_array_equal(dropped, np.repeat(factors[..., None], WIDTH, axis=-1))
    by_word = {word: set(factors[ids == word]) for word in np.unique(ids)}
    assert all(len(found) == 1 for found in by_word.values())
    assert set().union(*by_word.values()) == {0.0, np.float32(4 / 3)}
    np.testing.assert_array_equal(tape.gradient(dropped, inputs), dropped)


def test_the_rate_is_the_share_of_the_words():
    ids = np.arange(10_007)[None]
    dropped = WordDropout(0.2, seed=2)(np.ones((*ids.shape, 1), "float32"), ids, training=True)
    assert np.mean(np.asarray(dropped) == 0) == pytest.approx(0.2, abs=0.02)  # 5 deviations


def test_no_word_is_dropped_outside_training_or_at_a_rate_of_zero():
    ids = np.zeros((ROWS, POSITIONS), "int32")
    np.testing.assert_array_equal(WordDropout(0.5, seed=1)(ONES, ids), ONES)
    without = WordDropout(0.0, seed=1)
    np.testing.assert_array_equal(without(ONES, ids, training=True), ONES)
    assert without.variables == []


def project(memory_length, *, is_locked):
    """Returns the factors of queries, keys and values by dropout, (B, T or S, 3 N H) each."""
    attention = RelativeAttention(
        n_head=2, d_head=5, qkv_dropout=0.5, is_locked=is_locked, kernel_initializer="ones", seed=3
    )
    hidden = keras.ops.ones((ROWS, POSITIONS, 6))
    attention.build(hidden.shape)
    memory = keras.ops.ones((ROWS, memory_length, 6))
    parts = join_memory(*attention.project(hidden, memory, training=True), n_head=2)
    return [np.asarray(part).reshape(ROWS, -1, 10) / 6 for part in parts]


@pytest.mark.parametrize("memory_length", [0, 5])
def test_queries_keys_and_values_have_one_mask_each_with_the_memory(memory_length):
    parts = project(memory_length, is_locked=True)
    assert [part.shape[1] - POSITIONS for part in parts] == [0, memory_length, memory_length]
    for part in parts:
        assert set(part.ravel()) == {0.0, 2.0}
        np.testing.assert_array_equal(part, np.repeat(part[:, :1], part.shape[1], axis=1))
    assert (parts[0][:, 0] != parts[1][:, 0]).any()
    assert (parts[1][:, 0] != parts[2][:, 0]).any()


def test_without_a_lock_every_position_has_its_mask():
    for part in project(5, is_locked=False):
        assert all((part[:, k] != part[:, k - 1]).any() for k in range(part.shape[1]))
