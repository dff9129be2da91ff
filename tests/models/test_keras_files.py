"""`.keras` files hold the whole model: config, weights, dtype policy and random state."""

import subprocess
import sys

import keras
import numpy as np
import pytest
from places import ROOT
from small_model import BATCH, make_ids, make_model
from tables import slow_after

BINS = {"cutoffs": (5, 12), "div_val": 2, "untie_r": True}
POLICIES = ["mixed_float16", "mixed_bfloat16", "float32"]
FRESH = """
import sys, numpy, keras, txl_tf
txl_tf.TransformerXL  # the parts of the package are imported, and registered, when they are used
folder, *policies = sys.argv[1:]
ids = numpy.load(folder + "/ids.npy")
for policy in policies:
    model = keras.saving.load_model(f"{folder}/{policy}.keras")
    hidden, _ = model(ids, model.initial_memory(len(ids), 7))
    numpy.save(f"{folder}/{policy}.npy", model.nll(hidden, ids))
"""


def save_and_load(model, folder):
    path = str(folder / "model.keras")
    model.save(path)
    return keras.saving.load_model(path)


def compute_nll(model):
    hidden, _ = model(make_ids(), model.initial_memory(BATCH, 7))
    return np.asarray(model.nll(hidden, make_ids()))


@pytest.mark.parametrize("policy", slow_after(1, POLICIES))
def test_a_model_comes_back_from_its_file(tmp_path, policy):
    model = make_model(**BINS, dtype=policy)
    again = save_and_load(model, tmp_path)
    assert again.get_config() == model.get_config()
    assert again.dtype_policy == model.dtype_policy
    np.testing.assert_array_equal(compute_nll(again), compute_nll(model))


@pytest.mark.slow
def test_a_fresh_process_gives_the_same(tmp_path):
    models = {policy: make_model(**BINS, dtype=policy) for policy in POLICIES}
    for policy, model in models.items():
        model.save(tmp_path / f"{policy}.keras")
    np.save(tmp_path / "ids.npy", make_ids())
    subprocess.run([sys.executable, "-c", FRESH, tmp_path, *POLICIES], cwd=ROOT, check=True)
    for policy, model in models.items():
        found = np.load(tmp_path / f"{policy}.npy")
        np.testing.assert_array_equal(found, compute_nll(model), err_msg=policy)


@pytest.mark.parametrize(
    "choose",
    [
        lambda model: model,
        lambda model: model.embedding,
        lambda model: model.decoder_layers[1].attention,
        lambda model: model.softmax.biases[0],
    ],
)
def test_frozen_weights_stay_frozen_in_a_file(tmp_path, choose):
    model = make_model(**BINS)
    choose(model).trainable = False
    again = save_and_load(model, tmp_path)
    assert again.trainable == model.trainable
    found, expected = ([x.path for x in m.trainable_weights] for m in (again, model))
    assert found == expected
    np.testing.assert_array_equal(compute_nll(again), compute_nll(model))


def test_the_dropout_continues_where_it_was(tmp_path):
    model = make_model(**BINS, dropout=0.25, dropatt=0.5)

    def drop(model):
        return model(make_ids(), model.initial_memory(BATCH, 7), training=True)[0]

    first = drop(model)
    again = save_and_load(model, tmp_path)
    second = drop(model)
    np.testing.assert_array_equal(drop(again), second)
    assert np.abs(second - first).max() > 0
