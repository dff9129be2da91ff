"""The numbers of a run depend on the run, not on the settings of Keras."""

import keras
import numpy as np
import pytest
import small_encodings
import small_lstm
import small_model
import tensorflow as tf
from tables import slow_after

import txl_tf
from txl_tf.models.architecture import make_model

IDS = small_model.make_ids()
SPAN = txl_tf.AttentionSpan(mem_len=3)
DROPPED = {"dropout": 0.1, "dropatt": 0.1, "word_dropout": 0.1, "qkv_dropout": 0.1}
MODELS = {
    "bins": (small_model.make_config(cutoffs=(7, 13), div_val=2, **DROPPED), {"remat": True}, SPAN),
    "shaw": (small_encodings.make_config("shaw_biased", n_token=23), {}, SPAN),
    "lstm": (small_lstm.CONFIG, {}, txl_tf.AttentionSpan(0)),
    "qrnn": (small_lstm.QRNN_CONFIG, {}, txl_tf.AttentionSpan(0)),
}


@pytest.fixture
def set_dtypes():
    """Sets the settings of dtypes in Keras, as `keras.json` does too, until the end of a test."""
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()

    def change(dtype):
        if not dtype.startswith("mixed"):
            keras.config.set_floatx(dtype)
        keras.config.set_dtype_policy(dtype)

    yield change
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)


def compute(config, arguments, span):
    """Returns the losses of a new model in training and all gradients, of two documents each."""
    model = make_model(config, seed=1, **arguments)
    memory = model.initial_memory(len(IDS), span.mem_len, mask_empty=True)
    starts = np.arange(IDS.shape[1]) == 2
    with tf.GradientTape() as tape:
        hidden, memory = model(
            IDS, memory, span=span, training=True, document_starts=np.stack([starts] * len(IDS))
        )
        nats = model.nll(hidden, IDS)
        loss = tf.reduce_mean(nats)
    gradients = tape.gradient(loss, [weight.value for weight in model.trainable_weights])
    return [nats, *keras.tree.flatten(memory), *map(tf.convert_to_tensor, gradients)]


@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_do_not_depend_on_floatx(name, set_dtypes):
    expected = compute(*MODELS[name])
    for dtype in ("float16", "float64"):
        set_dtypes(dtype)
        for found, wanted in zip(compute(*MODELS[name]), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
            assert found.dtype == wanted.dtype


@pytest.mark.parametrize("dtype", slow_after(1, ["mixed_float16", "float64"]))
def test_a_loaded_run_has_the_precision_that_was_asked_for(dtype, set_dtypes, tmp_path):
    evaluation = txl_tf.EvalConfig(tgt_len=5, mem_len=3)
    txl_tf.LanguageModel(small_model.make_model(), None, evaluation).save(tmp_path / "run")
    expected = [score.nats for score in txl_tf.load(tmp_path / "run").score(IDS, jit="none")]
    set_dtypes(dtype)
    found = [score.nats for score in txl_tf.load(tmp_path / "run").score(IDS, jit="none")]
    np.testing.assert_array_equal(found, expected)


def test_a_model_that_a_user_builds_follows_the_settings(set_dtypes):
    set_dtypes("mixed_float16")
    assert small_model.make_model().compute_dtype == "float16"
    assert small_model.make_model(dtype="bfloat16").variable_dtype == "bfloat16"
