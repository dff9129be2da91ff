import numpy as np

from txl_tf.layers import FeedForward

WIDTH, INNER = 5, 11
HIDDEN = np.random.default_rng(3).normal(size=(2, 7, WIDTH)).astype("float32")


def make_layer(**arguments):
    layer, rng = FeedForward(d_inner=INNER, **arguments), np.random.default_rng(5)
    layer.build(HIDDEN.shape)
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    return layer


def test_two_dense_layers_with_a_rectifier_between():
    layer = make_layer()
    inner = np.maximum(HIDDEN @ np.asarray(layer.inner.kernel) + np.asarray(layer.inner.bias), 0)
    outer = inner @ np.asarray(layer.outer.kernel) + np.asarray(layer.outer.bias)
    np.testing.assert_allclose(layer(HIDDEN), outer, rtol=0, atol=1e-5)  # float32, 11 terms


def test_the_inner_layer_is_dropped_in_training_alone():
    layer, plain = make_layer(dropout=0.5, seed=3), make_layer()(HIDDEN)
    np.testing.assert_array_equal(layer(HIDDEN, training=False), plain)
    trained = np.asarray(layer(HIDDEN, training=True))
    assert np.abs(trained - plain).max() > 1e-2
    assert np.all(trained != 0)  # not the outer one
