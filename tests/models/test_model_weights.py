"""The model's weights: how many, and how they begin."""

import dataclasses
import itertools

import numpy as np
import pytest
import small_lstm
import tensorflow as tf
from small_model import BATCH, make_config, make_model

from txl_tf.errors import UserError
from txl_tf.lab.baselines.lstm import LSTMModel
from txl_tf.layers import AdaptiveEmbedding
from txl_tf.models.transformer_xl import TransformerXL

BRANCHES = {
    "one bin": {},
    "one bin, projected": {"d_embed": 7},
    "one bin, div_val": {"div_val": 2},
    "one table": {"cutoffs": (5, 12)},
    "one table, projected": {"cutoffs": (5, 12), "d_embed": 7},
    "one table, shared": {"cutoffs": (5, 12), "d_embed": 7, "proj_share_all_but_first": True},
    "tables": {"cutoffs": (5, 12), "div_val": 2},
    "tables, shared": {"cutoffs": (5, 12), "div_val": 2, "proj_share_all_but_first": True},
    "tables, not same dim": {"cutoffs": (5, 12), "div_val": 2, "proj_same_dim": False},
    "tables, embedding wider": {"cutoffs": (5, 12), "div_val": 3, "d_embed": 13},
    "untied biases": {"untie_r": True},
}


@pytest.mark.parametrize("branch", BRANCHES)
def test_parameters_are_as_many_as_the_config_says(branch):
    config = make_config(**BRANCHES[branch])
    assert TransformerXL(config).count_params() == config.count_parameters()


def make_embedding():
    layer = AdaptiveEmbedding(small_lstm.CONFIG)
    layer.build()
    return layer


@pytest.mark.parametrize("make", [make_model, small_lstm.make_model, make_embedding])
def test_a_checkpoint_of_tensorflow_holds_all_weights(make, tmp_path):
    source, target = make(), make()
    for weight in target.weights:
        weight.assign(weight + 1)
    path = tf.train.Checkpoint(model=source).write(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(model=target).read(path).assert_consumed().assert_existing_objects_matched()
    for found, expected in zip(target.variables, source.variables, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_checkpoint_of_tensorflow_holds_the_state_of_dropout(tmp_path):
    source, target = make_model(), TransformerXL(make_config(), name="another")
    source.set_dropout_seed(7)
    path = tf.train.Checkpoint(model=source).write(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(model=target).read(path).assert_consumed()
    np.testing.assert_array_equal(target.seed_generator.state, source.seed_generator.state)


def test_a_seed_fixes_the_weights():
    seeds = (5, np.int64(5), 6)
    first, second, other = (TransformerXL(make_config(), seed=seed) for seed in seeds)
    for one, same in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(one, same)
    assert np.abs(first.content_bias - other.content_bias).max() > 0


@pytest.mark.parametrize("seed", [None, 5])
def test_layers_start_from_weights_of_their_own(seed):
    model = TransformerXL(make_config(), seed=seed)
    kernels = [np.asarray(layer.attention.qkv_kernel) for layer in model.decoder_layers]
    for first, second in itertools.combinations(kernels, 2):
        assert np.abs(first - second).max() > 0


def test_normal_weights_start_with_the_spreads_of_the_config():
    config = make_config(
        n_token=997, d_model=62, d_embed=58, cutoffs=(211,), init_std=0.03, proj_init_std=0.007
    )
    model = TransformerXL(config, seed=3)
    small = [model.embedding.projections[0], model.softmax.projections[0]]
    large = [model.embedding.tables[0], model.decoder_layers[0].attention.qkv_kernel]
    large.append(model.decoder_layers[2].feed_forward.outer.kernel)
    for weights, spread in [(small, 0.007), (large, 0.03)]:
        for weight in weights:
            # 1,000 draws and more: the standard deviation is known to 3 %, four times less.
            np.testing.assert_allclose(np.std(weight), spread, rtol=0.12)


def test_uniform_weights_stay_within_the_range_of_the_config():
    config = dataclasses.replace(make_config(cutoffs=(5,), div_val=2), init="uniform")
    model = TransformerXL(dataclasses.replace(config, init_range=0.07), seed=3)
    weights = [model.embedding.tables[0], model.softmax.projections[0], model.content_bias]
    for weight in weights:
        assert 0.05 < np.abs(weight).max() <= 0.07


def test_projections_start_independent_of_the_tables():
    config = make_config(cutoffs=(5, 12), div_val=2, d_embed=8)
    embedding = TransformerXL(config, seed=1).embedding
    table, projection = np.ravel(embedding.tables[0]), np.ravel(embedding.projections[0])
    size = min(table.size, projection.size)  # 40 draws: chance stays below 0.6
    assert abs(np.corrcoef(table[:size], projection[:size])[0, 1]) < 0.6


@pytest.mark.parametrize("ids", [[[1, 2]], np.ones((2, 2)), np.ones(2, "int32"), "text"])
def test_ids_are_an_array_of_integers_with_two_axes(ids):
    model = make_model()
    with pytest.raises(UserError, match=r"`ids` must be an array \(B, T\) of integers. Received"):
        model(ids, model.initial_memory(2, 3))


@pytest.mark.parametrize("rows", [None, 3])
def test_the_memory_has_the_rows_of_the_ids(rows):
    model = make_model()
    memory = rows and model.initial_memory(rows, 3)
    received = "None" if rows is None else "3 rows"
    with pytest.raises(UserError, match=rf"`memory` must .* the 2 rows .* Received: {received}"):
        model(np.ones((2, 2), "int32"), memory)


@pytest.mark.parametrize("make", [TransformerXL, LSTMModel])
@pytest.mark.parametrize("config", [{"n_token": 7}, "text8_base", None])
def test_a_model_needs_a_config(make, config):
    with pytest.raises(UserError, match=r"`config` must be a ModelConfig, .* Received: "):
        make(config)


def test_a_dtype_that_keras_does_not_know_is_refused():
    with pytest.raises(UserError, match=r"`dtype` must be a float dtype .* Received: 'float8'$"):
        TransformerXL(make_config(), dtype="float8")


def test_a_shape_that_is_not_fixed_is_an_error():
    model = make_model()
    read_text = tf.function(lambda ids: model(ids, model.initial_memory(BATCH, 3))[0])
    with pytest.raises(ValueError, match=r"fixed shape .*drop_remainder=True\). Received: \(2"):
        read_text.get_concrete_function(tf.TensorSpec((BATCH, None), "int32"))
