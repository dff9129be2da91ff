"""Every public layer comes back from its config."""

import json

import keras
import numpy as np
import pytest

import txl_tf.layers
from txl_tf.config import ModelConfig
from txl_tf.layers import AdaptiveEmbedding, make_attention_mask, make_position_table

BATCH, QUERIES, MEMORY, WIDTH, HEADS, HEAD_SIZE, INNER = 2, 3, 5, 6, 7, 11, 13
CONFIG = ModelConfig(
    n_token=23,
    n_layer=1,
    d_model=WIDTH,
    d_embed=WIDTH,
    n_head=HEADS,
    d_head=HEAD_SIZE,
    d_inner=INNER,
    cutoffs=(5, 12),
    div_val=2,
    dropout=0.25,
    dropatt=0.5,
)
HEAD_FIELDS = {"n_head": HEADS, "d_head": HEAD_SIZE, "kernel_initializer": "he_normal"}
ARGUMENTS = {
    "AdaptiveEmbedding": {"config": CONFIG},
    "AdaptiveSoftmax": {"config": CONFIG},
    "DecoderLayer": HEAD_FIELDS
    | {"d_inner": INNER, "dropout": 0.25, "dropatt": 0.5, "qkv_dropout": 0.25}
    | {"is_locked": True, "seed": 3},
    "Dropout": {"rate": 0.25, "is_locked": True, "seed": 3},
    "FeedForward": {"d_inner": INNER, "dropout": 0.25, "is_locked": True, "seed": 3},
    "RelativeAttention": HEAD_FIELDS
    | {"dropatt": 0.5, "qkv_dropout": 0.25, "is_locked": True, "seed": 3},
    "WordDropout": {"rate": 0.25, "seed": 3},
}
POLICIES = pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])


def list_layers():
    public = [getattr(txl_tf.layers, name) for name in txl_tf.layers.__all__]
    classes = (each for each in public if isinstance(each, type))
    return sorted(each.__name__ for each in classes if issubclass(each, keras.layers.Layer))


def make_layer(name, **more):
    layer = getattr(txl_tf.layers, name)(**ARGUMENTS[name] | more)
    layer.build((BATCH, QUERIES, WIDTH))
    return layer


def come_back(layer):
    """Returns a layer as Keras makes it of the JSON in a file, with the weights of the first."""
    content = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    again = keras.saving.deserialize_keras_object(content)
    if layer.built and not again.built:
        again.build((BATCH, QUERIES, WIDTH))
    again.set_weights(layer.get_weights())
    return again


def call(layer, *, training=False):
    rng = np.random.default_rng(5)
    ids = rng.integers(CONFIG.n_token, size=(BATCH, QUERIES), dtype="int32")
    shapes = [(BATCH, QUERIES, WIDTH), (BATCH, MEMORY, WIDTH), (HEADS, HEAD_SIZE)]
    hidden, memory, bias = (rng.normal(size=shape).astype("float32") for shape in shapes)
    if type(layer).__name__ == "AdaptiveEmbedding":
        return layer(ids)
    if type(layer).__name__ == "AdaptiveSoftmax":
        embedding = AdaptiveEmbedding(CONFIG, kernel_initializer="ones", proj_initializer="ones")
        embedding.build()
        return layer(hidden, ids, embedding=embedding)
    if type(layer).__name__ == "WordDropout":
        return layer(hidden, ids, training=training)
    if type(layer).__name__ in ("Dropout", "FeedForward"):
        return layer(hidden, training=training)
    positions = make_position_table(MEMORY + QUERIES, WIDTH)
    mask = make_attention_mask(QUERIES, MEMORY)
    hidden, memory, positions, bias = (
        keras.ops.cast(each, layer.compute_dtype) for each in (hidden, memory, positions, bias)
    )
    return layer(hidden, memory, positions, bias, -bias, mask, training=training)


def test_every_public_layer_is_tested():
    assert list_layers() == sorted(ARGUMENTS)


@POLICIES
@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_layer_comes_back_with_its_config_and_results(name, policy):
    layer = make_layer(name, dtype=policy)
    again = come_back(layer)
    assert type(again) is type(layer)
    assert again.get_config() == layer.get_config()
    assert again.dtype_policy == layer.dtype_policy
    found, expected = (keras.ops.cast(call(each), "float32") for each in (again, layer))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", [name for name in ARGUMENTS if "seed" in ARGUMENTS[name]])
def test_a_layer_that_comes_back_drops_the_same(name):
    layer = make_layer(name)
    again = come_back(layer)
    first, second = call(layer, training=True), call(again, training=True)
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - call(layer)).max() > 0
