"""What users of Keras do with a model."""

import keras
import numpy as np
import pytest
from small_causal_lm import BATCH, LENGTH, make_lm, make_segments, read_memory

from txl_tf import CausalLM


def test_a_summary_shows_shapes():
    lm, lines = make_lm(), []
    for model in (lm, lm.backbone):
        model.summary(print_fn=lines.append)
    text = "\n".join(lines)
    assert "(None, None, 8)" in text
    assert not {"?", "unbuilt"} & set(text.replace("(", " ").replace(")", " ").split())


@pytest.mark.parametrize("optimizer", ["sgd", "demo"])
def test_a_functional_model_has_it_as_a_layer(optimizer):
    inputs = keras.Input(batch_shape=(BATCH, LENGTH), dtype="int32")
    lm = make_lm()
    outputs = keras.layers.Dense(3)(lm(inputs))
    model = keras.Model(inputs, outputs)
    ids = make_segments()[0][0]
    assert model(ids).shape == (BATCH, LENGTH, 3)
    own = optimizer if optimizer == "sgd" else CausalLM.make_optimizer(optimizer)
    model.compile(own, loss="mse")
    model.fit(ids, np.zeros((BATCH, LENGTH, 3)), batch_size=BATCH, verbose=0)


def test_two_models_in_one_process_have_a_memory_each():
    first, second = make_lm(), make_lm()
    history = first.fit(make_segments(), verbose=0).history
    assert second.fit(make_segments(), verbose=0).history == history


def test_a_subclass_trains_and_comes_back(tmp_path):
    @keras.saving.register_keras_serializable(package="tests")
    class Doubled(CausalLM):
        def compute_loss(self, *args, **kwargs):
            return 2 * super().compute_loss(*args, **kwargs)

    lm, plain = make_lm(model=Doubled), make_lm()
    losses = [x.fit(make_segments(), steps_per_epoch=1, verbose=0).history for x in (lm, plain)]
    assert losses[0]["loss"][0] == pytest.approx(2 * losses[1]["loss"][0])
    lm.save(tmp_path / "lm.keras")
    again = keras.saving.load_model(tmp_path / "lm.keras")
    assert type(again) is Doubled


def test_functions_run_eagerly_alike():
    import tensorflow as tf

    expected = make_lm().fit(make_segments(), steps_per_epoch=3, verbose=0).history
    tf.config.run_functions_eagerly(True)
    try:
        found = make_lm().fit(make_segments(), steps_per_epoch=3, verbose=0).history
    finally:
        tf.config.run_functions_eagerly(False)
    for name, losses in expected.items():
        assert found[name] == pytest.approx(losses, rel=1e-5), name


def test_the_model_follows_the_float_type_of_keras():
    try:
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy(
            "float64"
        )  # what it is in a process that sets the other first
        lm = make_lm()
        lm.fit(make_segments(), steps_per_epoch=2, verbose=0)
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")
    assert lm.backbone.decoder_layers[0].attention.o_kernel.dtype == "float64"
    assert read_memory(lm)[0].dtype == np.float64


def test_callbacks_of_keras_see_the_losses(tmp_path):
    lm, data = make_lm(), make_segments()
    seen = []
    callbacks = [
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs)),
        keras.callbacks.EarlyStopping(patience=0, min_delta=100.0),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.TensorBoard(str(tmp_path / "events")),
        keras.callbacks.ReduceLROnPlateau(patience=1),
    ]
    lm.fit(data, validation_data=data, epochs=9, callbacks=callbacks, verbose=0)
    assert len(seen) == 2  # stopped early
    assert {"nats", "val_nats", "val_bits", "val_perplexity"} < set(seen[0])
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3
    assert list((tmp_path / "events").rglob("events*"))


def test_a_call_carries_the_memory_until_it_is_reset():
    lm, ids = make_lm(), make_segments()[0][0]
    first, second = (np.asarray(lm(ids)) for _ in range(2))
    assert np.abs(first - second).max() > 0.01
    lm.reset_states()
    np.testing.assert_allclose(np.asarray(lm(ids)), first, rtol=0, atol=1e-6)
