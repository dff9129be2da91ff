import dataclasses

import jax_lstm
import numpy as np
import pytest
import tensorflow as tf
from golden_cases import NAMES, load_case
from jax_documents import CONFIG, read_segments
from jax_remat import CONFIG as DROPPING
from jax_remat import IDS, LOCKED, SPAN, STARTS
from on_jax import run_on_jax
from small_lstm import STARTS as STARTS_OF_LSTM
from small_lstm import make_model as make_recurrent

from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.release.names import SCOPE, list_entries
from txl_tf.release.weights import load_model
from txl_tf.training.step import compute_gradients

# float32, summed in another order; the golden numbers themselves hold 2e-5 and 1e-4.
LOSS_TOLERANCE = 2e-5
GRADIENT_TOLERANCE = 1e-4


def list_golden_entries(name):
    case = load_case(name)
    return list(list_entries(load_model(case.checkpoint, case.config)))


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """What the models of the golden files compute, in a process without tensorflow."""
    weights = {
        f"{name}/{entry.target.path}": entry.target
        for name in NAMES
        for entry in list_golden_entries(name)
    }
    return run_on_jax("jax_golden.py", weights, tmp_path_factory.mktemp("golden"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_numbers_on_jax_are_those_of_the_2019_code(name, golden):
    """Losses, memories, gradients and evaluations."""
    assert golden["backend"] == "jax"
    assert "txl_tf" in golden["modules"]
    assert "tensorflow" not in golden["modules"]
    results = {
        key.removeprefix(f"{name}/"): value
        for key, value in golden.items()
        if key.startswith(f"{name}/")
    }
    case, entries = load_case(name), list_golden_entries(name)
    keys = {SCOPE + entry.source: f"grad/{entry.target.path}" for entry in entries}
    compared = set()
    for key, expected in case.golden.items():
        if key == "tokens":
            continue
        is_gradient = key.startswith("grad/")
        computed = keys[key.removeprefix("grad/")] if is_gradient else key
        tolerance = GRADIENT_TOLERANCE if is_gradient else LOSS_TOLERANCE
        np.testing.assert_allclose(results[computed], expected, rtol=0, atol=tolerance, err_msg=key)
        compared.add(computed)
    assert compared == results.keys()


@pytest.mark.slow
def test_documents_on_jax_are_those_on_tensorflow(tmp_path):
    """Hidden states and memory of two segments in which documents begin."""
    model = TransformerXL(CONFIG, seed=3)
    weights = {variable.path: variable for variable in model.trainable_variables}
    results = run_on_jax("jax_documents.py", weights, tmp_path)
    expected = read_segments(model, model)
    assert results.keys() == expected.keys()
    for key, states in expected.items():
        # Hidden states of the order of 1, three layers in float32.
        np.testing.assert_allclose(results[key], states, rtol=0, atol=2e-5, err_msg=key)
    without = read_segments(model, lambda *args, **kwargs: model(*args, span=kwargs["span"]))
    assert np.abs(without["hidden_1"] - expected["hidden_1"]).max() > 1e-2


@pytest.fixture(scope="module")
def dropping(tmp_path_factory):
    """A model with dropout, and what a step in training computes on JAX, with remat and without."""
    model = TransformerXL(DROPPING, seed=3)
    weights = {variable.path: variable for variable in model.trainable_variables}
    return model, run_on_jax("jax_remat.py", weights, tmp_path_factory.mktemp("remat"))


@pytest.mark.slow
def test_remat_on_jax_changes_no_loss_memory_mask_or_gradient(dropping):
    model, results = dropping
    results = {key: value for key, value in results.items() if not key.startswith("locked/")}
    weights = {variable.path for variable in model.trainable_variables}
    assert results.pop("plain/barriers") == 0
    assert results.pop("remat/barriers") >= DROPPING.n_layer  # before each second computation
    names = [key.removeprefix("plain/") for key in results if key.startswith("plain/")]
    assert {f"gradient/{path}" for path in weights} < set(names)
    assert len(results) == 2 * len(names)
    for name in names:
        expected = results[f"plain/{name}"]
        scale = np.abs(expected).max()
        assert scale > 0, name
        # Of the largest entry: float32, summed in another order.
        np.testing.assert_allclose(
            results[f"remat/{name}"], expected, rtol=0, atol=1e-5 * scale, err_msg=name
        )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "config"), [("plain", DROPPING), ("locked", LOCKED)])
def test_dropout_on_jax_drops_what_it_drops_on_tensorflow(name, config, dropping):
    """The loss and every gradient of a step in training."""
    results = dropping[1]
    model = TransformerXL(config, seed=3)
    model.set_weights(dropping[0].get_weights())
    ids, memory = tf.constant(IDS), model.initial_memory(2, SPAN.mem_len, mask_empty=True)
    nats, gradients, _ = compute_gradients(
        model, ids, ids[:, ::-1], memory, span=SPAN, document_starts=tf.constant(STARTS)
    )
    found = {"loss": nats / IDS.size} | {
        f"gradient/{variable.path}": gradient
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True)
    }
    for key, expected in found.items():
        # Of the largest entry: float32, summed in another order. Other masks change all of them.
        scale = np.abs(expected).max()
        np.testing.assert_allclose(
            results[f"{name}/{key}"], expected, rtol=0, atol=1e-5 * scale, err_msg=key
        )


@pytest.fixture(scope="module", params=["lstm", "qrnn"])
def recurrent(request, tmp_path_factory):
    """A recurrent model, and what a step in training computes on JAX, with remat and without."""
    model = make_recurrent(dataclasses.replace(jax_lstm.DROPPING, model_type=request.param))
    weights = {variable.path: variable for variable in model.trainable_variables}
    return model, run_on_jax("jax_lstm.py", weights, tmp_path_factory.mktemp("recurrent"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "remat"])
def test_recurrent_models_on_jax_equal_those_on_tensorflow(name, recurrent):
    """Loss, memory and every gradient of a step in training, with documents and dropout."""
    model, results = recurrent
    memory = jax_lstm.fill_memory(model)
    model.set_dropout_seed(3)
    ids = tf.constant(jax_lstm.IDS)
    nats, gradients, memory = compute_gradients(
        model, ids, ids[:, ::-1], memory, span=None, document_starts=tf.constant(STARTS_OF_LSTM)
    )
    paths = [f"gradient/{variable.path}" for variable in model.trainable_variables]
    expected = {"loss": nats / jax_lstm.IDS.size, **dict(zip(paths, gradients, strict=True))}
    expected |= {f"memory/{k}": states for k, states in enumerate(tf.nest.flatten(memory))}
    assert {f"{name}/{key}" for key in expected} < results.keys()
    for key, values in expected.items():
        # Of the largest entry: float32, summed in another order.
        scale = np.abs(values).max()
        found = results[f"{name}/{key}"]
        np.testing.assert_allclose(found, values, rtol=0, atol=1e-5 * scale, err_msg=key)
