"""The same script on JAX, without TensorFlow, and on several replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from jax_causal_lm import CASES, make, train
from on_jax import run_on_jax
from small_causal_lm import make_lm, make_segments, read_states

import txl_tf
from txl_tf import CausalLM, Segments, TrainConfig, UserError
from txl_tf.data import write_records

# float32, summed in another order, over 40 steps.
SAME = {"rtol": 0, "atol": 2e-5}


@pytest.fixture(scope="module")
def on_jax(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jax")
    vocabulary = txl_tf.load("pydoc").vocabulary
    ids = np.frombuffer(b"Return the name of the file. " * 20, np.uint8).astype(np.int32)
    write_records(
        folder / "results-records",
        dataset="bytes",
        vocabulary=vocabulary,
        splits={"valid": [ids]},
    )
    return folder, run_on_jax("jax_causal_lm.py", {}, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_jax_makes_the_steps_that_tensorflow_makes(name, on_jax):
    _, found = on_jax
    lm = make(**CASES[name])
    losses = train(lm)
    np.testing.assert_allclose(found[f"{name}/losses"], losses, **SAME)
    for index, state in enumerate(read_states(lm)):
        np.testing.assert_allclose(found[f"{name}/state_{index}"], state, **SAME)


@pytest.mark.slow
def test_jax_needs_no_tensorflow_and_writes_what_tensorflow_reads(on_jax):
    folder, found = on_jax
    assert not [name for name in found["modules"] if name.startswith("tensorflow")]
    assert "KERAS_BACKEND" in str(found["error"])
    lm = keras.saving.load_model(folder / "results.keras")
    state = [found[f"compiled/state_{index}"] for index in range(len(read_states(lm)))]
    for one, other in zip(read_states(lm), state, strict=True):
        np.testing.assert_array_equal(one, other)
    again = CausalLM.from_run(folder / "results-run")
    again.compile()
    np.testing.assert_allclose(again.evaluate(make_segments(), verbose=0), found["run"], rtol=1e-5)


@pytest.mark.slow
def test_frozen_weights_stay_frozen_in_a_file_on_jax(on_jax):
    _, found = on_jax
    assert any("embedding" in path for path in found["frozen"])
    np.testing.assert_array_equal(found["frozen"], found["expected_frozen"])


@pytest.mark.slow
def test_the_shipped_model_and_records_are_read_alike(on_jax):
    folder, found = on_jax
    lm = CausalLM.from_run("pydoc", eval_batch_size=2)
    lm.compile()
    records = txl_tf.data.open_records(folder / "results-records")
    valid = Segments(records.split("valid"), batch_size=2, tgt_len=16)
    np.testing.assert_allclose(lm.evaluate(valid, verbose=0), found["pydoc"], rtol=1e-4)
    np.testing.assert_allclose(lm.predict(valid, verbose=0), found["predicted"], atol=1e-3)


@pytest.mark.parametrize("name", ["CausalLM", "Segments", "TransformerXL"])
def test_torch_is_refused_in_one_line(name, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    with pytest.raises(UserError, match=r"must be tensorflow or jax\. Received: torch"):
        getattr(txl_tf, name)


@pytest.mark.slow
@pytest.mark.parametrize("as_dataset", [False, True])
def test_two_replicas_make_the_steps_of_one(two_replicas, as_dataset, tmp_path):
    data = make_segments()
    one = make_lm()  # with more steps_per_execution, Keras itself fails under MirroredStrategy
    with two_replicas.scope():
        two = make_lm()
    histories = [
        lm.fit(
            data.to_dataset() if as_dataset else data, validation_data=data, epochs=2, verbose=0
        ).history
        for lm in (one, two)
    ]
    for name, losses in histories[0].items():
        assert histories[1][name] == pytest.approx(losses, rel=1e-5), name
    path = str(tmp_path / "two.keras")
    two.save(path)
    again = keras.saving.load_model(path)  # on one replica, with the memory of both
    for found, expected in zip(read_states(again), read_states(one), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    with two_replicas.scope():
        split = keras.saving.load_model(path)
    for lm in (again, split):
        lm.fit(data, verbose=0)
    np.testing.assert_allclose(
        split.evaluate(data, verbose=0), again.evaluate(data, verbose=0), rtol=1e-5
    )


@pytest.mark.slow
def test_two_replicas_follow_a_recipe_as_one_does(two_replicas):
    """Their gradients are clipped after they are added."""
    recipe = TrainConfig(optimizer="muon", learning_rate=0.02, clip=0.1, weight_decay=0.1)
    one = make_lm(CausalLM.make_optimizer(recipe))
    with two_replicas.scope():
        two = make_lm(CausalLM.make_optimizer(recipe))
    for lm in (one, two):
        lm.fit(make_segments(), verbose=0)
    for found, expected in zip(two.backbone.weights, one.backbone.weights, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_the_best_weights_and_the_memory_of_all_replicas_come_back(two_replicas):
    with two_replicas.scope():
        lm = make_lm()
    lm.fit(make_segments(), verbose=0)
    weights = lm.get_weights()
    stopping = keras.callbacks.EarlyStopping(patience=0, min_delta=9.0, restore_best_weights=True)
    lm.fit(
        make_segments(),
        validation_data=make_segments(),
        epochs=3,
        callbacks=[stopping],
        verbose=0,
    )
    lm.set_weights(weights)
    for found, expected in zip(lm.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_replicas_drop_different_entries(two_replicas):
    with two_replicas.scope():
        lm = make(dropout=0.5)
    ids = tf.constant(make_segments()[0][0][:3])
    hidden = two_replicas.run(lambda: lm(ids, training=True))
    first, second = two_replicas.experimental_local_results(hidden)
    assert np.abs(first - second).max() > 0.1


def test_the_rows_must_be_divisible_by_the_replicas(two_replicas):
    with two_replicas.scope(), pytest.raises(UserError, match="Received: 3 rows, 2 replicas"):
        make_lm(batch=3)
