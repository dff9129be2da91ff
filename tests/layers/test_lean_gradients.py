"""Gradients written by hand, beside those that are derived operation by operation."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from txl_tf.layers.lean_gradients import attend_with_dropout, make_late_zero, rectify

MASKED = -1e30


def rectify_plainly(inputs, keep, rate):
    return ops.where(keep, ops.relu(inputs), 0) / (1 - rate)


def attend_plainly(scores, values, keep, rate):
    weights = ops.where(keep, ops.softmax(scores, axis=-1), 0) / (1 - rate)
    return ops.einsum("bnts,bsnh->btnh", ops.cast(weights, values.dtype), values)


def differentiate(function, jit, *inputs):
    """Returns what a function gives, and the gradients of a weighted sum of it."""

    @tf.function(jit_compile=jit)
    def compute(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            found = function(*inputs)
            factors = tf.reshape(tf.cos(tf.range(tf.size(found), dtype=tf.float32)), found.shape)
            total = tf.reduce_sum(tf.cast(found, tf.float32) * factors)
        return found, tape.gradient(total, inputs)

    found, gradients = compute(*inputs)
    return [np.asarray(tf.cast(tensor, tf.float32)) for tensor in (found, *gradients)]


def draw(rng, *shape):
    return tf.constant(rng.normal(size=shape), tf.float32)


@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_the_rectifier_is_the_plain_one(rate, jit):
    rng = np.random.default_rng(5)
    inputs = draw(rng, 7, 11)
    keep = tf.constant(rng.random((7, 11)) >= rate)
    found = differentiate(lambda x: rectify(x, keep if rate else None, rate), jit, inputs)
    expected = differentiate(lambda x: rectify_plainly(x, keep, rate), jit, inputs)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)  # float32
    assert 0 < np.count_nonzero(found[1]) < found[1].size


@pytest.mark.parametrize("jit", [True, False])
def test_attention_is_the_plain_one(jit):
    rng = np.random.default_rng(7)
    visible = np.tri(5, 9, 4, bool)
    scores = tf.where(visible, draw(rng, 2, 3, 5, 9), MASKED)
    values, keep = draw(rng, 2, 9, 3, 4), tf.constant(rng.random((2, 3, 5, 9)) > 0.3)
    found = differentiate(lambda *x: attend_with_dropout(*x, keep, 0.3), jit, scores, values)
    expected = differentiate(lambda *x: attend_plainly(*x, keep, 0.3), jit, scores, values)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)  # sums of float32
    assert not found[1][..., ~visible].any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_loses_no_more_than_rounding(dtype):
    rng = np.random.default_rng(11)
    scores, values = draw(rng, 2, 3, 5, 9), draw(rng, 2, 9, 3, 4)
    keep = tf.constant(rng.random((2, 3, 5, 9)) > 0.3)

    def attend(scores, values):
        return attend_with_dropout(scores, ops.cast(values, dtype), keep, 0.3)

    found = differentiate(attend, True, scores, values)
    expected = differentiate(lambda *x: attend_plainly(*x, keep, 0.3), True, scores, values)
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() < 0.03 * np.abs(other).max()  # bfloat16 has 8 bits
    outputs = rectify(ops.cast(draw(rng, 7), dtype), keep[0, 0, 0, :7], 0.3)
    assert outputs.dtype == dtype


def test_a_late_zero_is_zero_and_passes_on_what_is_not_a_number():
    zeros = [float(make_late_zero(tf.constant([x, 1.0]))) for x in (-3.0, 0.0, 2.0, np.inf)]
    assert zeros == [0.0] * 4
    assert np.isnan(float(make_late_zero(tf.constant([np.nan, 1.0]))))
