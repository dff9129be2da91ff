"""A model comes back from its files with all of its state, and a killed run goes on."""

import dataclasses
import functools
import json
import os
import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest
from places import ROOT
from small_causal_lm import (
    BATCH,
    CONFIG,
    IDS,
    LENGTH,
    MEMORY,
    SPAN,
    make_lm,
    make_segments,
    read_memory,
    read_states,
)
from tables import slow_after

import txl_tf
from txl_tf import (
    AttentionSpan,
    CausalLM,
    EvalConfig,
    LanguageModel,
    Segments,
    TransformerXL,
    extend_vocabulary,
)
from txl_tf.data import Vocabulary
from txl_tf.errors import UserError

DROPPING = CONFIG.from_json(CONFIG.to_json() | {"n_layer": 1, "dropout": 0.3, "dropatt": 0.2})
FRESH = """
import sys, numpy, keras
from txl_tf import CausalLM, Segments
lm = keras.saving.load_model(sys.argv[1])
ids = numpy.load(sys.argv[2])
lm.fit(Segments(ids, batch_size=6, tgt_len=5), verbose=0)
numpy.savez(sys.argv[3], *[keras.ops.convert_to_numpy(x) for x in lm.weights])
"""


def make_dropping(**compiling):
    return make_lm(keras.optimizers.Adam(0.01), config=DROPPING, **compiling)


def assert_equal_states(found, expected):
    for one, other in zip(read_states(found), read_states(expected), strict=True):
        np.testing.assert_array_equal(one, other)


class Kill(keras.callbacks.Callback):
    """Stops a run after some calls of the device, as Ctrl-C does."""

    def __init__(self, n_calls):
        super().__init__()
        self.n_left = n_calls

    def on_train_batch_end(self, batch, logs=None):
        self.n_left -= 1
        if not self.n_left:
            raise KeyboardInterrupt


def save_and_load(lm, path):
    lm.save(path)
    return keras.saving.load_model(path)


def train_dropping():
    lm = make_dropping()
    lm.fit(make_segments(), verbose=0)
    return lm


@pytest.fixture(scope="module")
def trained():
    """A model after an epoch or more: some tests train it on, and evaluate it."""
    return train_dropping()


@pytest.mark.parametrize(
    "copy",
    slow_after(
        1,
        [
            pytest.param(save_and_load, id="file"),
            pytest.param(lambda lm, path: pickle.loads(pickle.dumps(lm)), id="pickle"),
        ],
    ),
)
def test_a_copy_trains_on_as_the_model_does(trained, copy, tmp_path):
    again = copy(trained, str(tmp_path / "lm.keras"))
    assert again.get_config() == trained.get_config()
    assert_equal_states(again, trained)
    for lm in (trained, again):
        lm.fit(make_segments(), verbose=0)
    assert_equal_states(again, trained)
    found, expected = (lm.evaluate(make_segments(), verbose=0) for lm in (again, trained))
    assert found == expected


@pytest.mark.slow
def test_a_fresh_process_trains_on_from_a_file(tmp_path):
    trained = train_dropping()  # evaluations leave a memory, which `fit` does not use
    paths = [tmp_path / name for name in ("lm.keras", "ids.npy", "weights.npz")]
    trained.save(paths[0])
    np.save(paths[1], IDS)
    subprocess.run([sys.executable, "-c", FRESH, *paths], cwd=ROOT, check=True)
    trained.fit(make_segments(), verbose=0)
    with np.load(paths[2]) as found:
        for key, weight in zip(found, trained.weights, strict=True):
            np.testing.assert_allclose(found[key], weight, rtol=0, atol=1e-6)


def test_weights_alone_come_back_with_the_memory(trained, tmp_path):
    path = str(tmp_path / "lm.weights.h5")
    trained.save_weights(path)
    again = make_dropping()
    again.optimizer.build(again.trainable_variables)
    again.load_weights(path)
    assert_equal_states(again, trained)


@pytest.mark.slow
def test_weights_of_another_batch_size_come_without_the_memory(trained, tmp_path):
    path = str(tmp_path / "lm.weights.h5")
    trained.save_weights(path)
    again = make_lm(config=DROPPING, batch=2)
    with pytest.warns(UserWarning, match=r"\(6, 7, 8\), that of the model \(2, 7, 8\): it is emp"):
        again.load_weights(path)
    np.testing.assert_array_equal(again.backbone.weights[0], trained.backbone.weights[0])
    assert not any(np.any(states) for states in read_memory(again))


def test_a_clone_has_the_config_and_new_weights():
    lm = CausalLM(TransformerXL(CONFIG, remat=True), batch_size=3, span=SPAN, eval_batch_size=2)
    again = keras.models.clone_model(lm)
    assert again.get_config() == lm.get_config()
    assert again.backbone.remat
    assert again.eval_batch_size == 2
    assert again.backbone is not lm.backbone


def test_frozen_weights_stay_frozen_in_a_file(tmp_path):
    lm = make_lm()
    lm.backbone.embedding.trainable = False
    lm.compile("adam")
    lm.fit(make_segments(), verbose=0)
    path = str(tmp_path / "lm.keras")
    lm.save(path)
    again = keras.saving.load_model(path)
    found, expected = ([x.path for x in each.trainable_weights] for each in (again, lm))
    assert found == expected
    table = lm.backbone.embedding.tables[0]
    np.testing.assert_array_equal(table, make_lm().backbone.embedding.tables[0])


@pytest.mark.slow
def test_the_best_checkpoint_is_a_whole_model(tmp_path):
    lm, path = make_dropping(), str(tmp_path / "best.keras")
    keeper = keras.callbacks.ModelCheckpoint(path, save_best_only=True)
    history = lm.fit(
        make_segments(), validation_data=make_segments(), epochs=3, callbacks=keeper, verbose=0
    ).history
    again = keras.saving.load_model(path)
    found = again.evaluate(make_segments(), return_dict=True, verbose=0)["nats"]
    assert found == pytest.approx(min(history["val_nats"]), abs=1e-6)


@pytest.mark.parametrize(
    ("save_freq", "n_calls", "steps"),
    [
        pytest.param(6, 5, 3, id="within the first epoch"),
        pytest.param(1, 4, 1, id="at each step"),
        pytest.param(20, 20, 1, id="at the end of the first"),
        pytest.param("epoch", 23, 1, id="by epochs"),
    ],
)
@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was(save_freq, n_calls, steps, tmp_path):
    """An epoch has 20 segments."""

    def train(*callbacks):
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=save_freq)
        return train_epochs(steps, backup, *callbacks)

    with pytest.raises(KeyboardInterrupt):
        train(Kill(n_calls))
    assert os.listdir(tmp_path / "backup")
    assert_equal_states(train(), train_without_a_kill(steps))


def train_epochs(steps, *callbacks):
    lm = make_dropping(steps_per_execution=steps)
    lm.fit(make_segments(), epochs=3, callbacks=callbacks, verbose=0)
    return lm


@functools.cache
def train_without_a_kill(steps):
    return train_epochs(steps)


@pytest.mark.slow
def test_a_run_that_is_killed_twice_goes_on_where_it_was(tmp_path):
    def train(*kills):
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=4)
        lm, data = make_dropping(), make_segments()
        lm.fit(data, epochs=7, initial_epoch=5, callbacks=[backup, *kills], verbose=0)
        assert len(data) == 20
        return lm

    for n_calls in (26, 5):  # in the second epoch, and there again
        with pytest.raises(KeyboardInterrupt):
            train(Kill(n_calls))
    whole = make_dropping()
    whole.fit(make_segments(), epochs=2, verbose=0)
    lm = train()
    assert_equal_states(lm, whole)
    assert len(lm.fit(make_segments(), verbose=0).history["nats"]) == 1  # begins at epoch 0 again


def test_other_data_than_segments_cannot_begin_within_an_epoch(tmp_path):
    def make_backup():
        return keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=4)

    data = make_segments().to_dataset()
    with pytest.raises(KeyboardInterrupt):
        make_lm().fit(data, callbacks=[make_backup(), Kill(6)], verbose=0)
    with pytest.raises(UserError, match="stopped after 4 batches of an epoch, and only `Segments`"):
        make_lm().fit(data, callbacks=make_backup(), verbose=0)


def test_a_run_with_steps_per_epoch_goes_on_with_a_warning_that_its_data_begin_anew(tmp_path):
    def train(*callbacks):
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
        options = {"epochs": 2, "steps_per_epoch": 2, "verbose": 0}
        lm = make_lm(run_eagerly=True)
        lm.fit(make_segments(), callbacks=[backup, *callbacks], **options)

    with pytest.raises(KeyboardInterrupt):
        train(Kill(3))
    with pytest.warns(UserWarning, match="the data of the restored run begin anew"):
        train()


def test_runs_and_keras_models_hold_the_same_weights(tmp_path):
    vocabulary = Vocabulary("char", tuple("abcdefghijklmnopqrstuvw"))
    lm = make_lm()
    evaluation = EvalConfig(tgt_len=LENGTH, mem_len=MEMORY, eval_batch_size=BATCH)
    lm.to_run(tmp_path / "run", vocabulary=vocabulary, evaluation=evaluation)
    run = txl_tf.load(tmp_path / "run")
    assert (run.span, run.evaluation.eval_batch_size) == (SPAN, BATCH)
    ids = IDS[: 9 * LENGTH + 1]
    (score,) = run.score([vocabulary.decode(ids)], mask_empty_memory=False)
    alone = CausalLM.from_run(tmp_path / "run", batch_size=1, eval_batch_size=1)
    alone.compile()
    data = Segments(ids, batch_size=1, tgt_len=LENGTH)
    found = alone.evaluate(data, return_dict=True, verbose=0)
    assert found["nats"] == pytest.approx(score.nats_per_token, rel=1e-5)
    run.save(tmp_path / "checkpoint")
    again = CausalLM.from_run(tmp_path / "checkpoint")
    assert (again.batch_size, again.span) == (BATCH, SPAN)
    for one, other in zip(again.backbone.weights, lm.backbone.weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_model_of_any_name_becomes_a_run(tmp_path):
    lm = CausalLM(TransformerXL(CONFIG, name="student", seed=3), batch_size=BATCH, span=SPAN)
    lm.to_run(tmp_path / "run")
    named = LanguageModel(lm.backbone, None, EvalConfig())
    named.save(tmp_path / "checkpoint")
    named.save(tmp_path / "weights", safetensors="float32")
    for name in ("run", "checkpoint", "weights"):
        found = CausalLM.from_run(tmp_path / name).backbone
        for one, other in zip(found.weights, lm.backbone.weights, strict=True):
            np.testing.assert_array_equal(one, other)
    letters = Vocabulary("char", tuple("abcdefghijklmnopqrstuvw"))
    extended = extend_vocabulary(LanguageModel(lm.backbone, letters, EvalConfig()), ["x"])
    assert extended.config.n_token == 24


@pytest.mark.parametrize("name", ["shaw", "learned"])
def test_a_table_of_positions_limits_the_segments_of_a_run(name, tmp_path):
    span = AttentionSpan(7 if name == "shaw" else 0)
    config = dataclasses.replace(CONFIG, encoding=name, n_positions=span.mem_len + LENGTH)
    lm = CausalLM(config, batch_size=BATCH, span=span)
    lm.to_run(tmp_path / "run")
    run = txl_tf.load(tmp_path / "run")
    assert (run.evaluation.tgt_len, run.training.tgt_len) == (LENGTH, LENGTH)


def test_batch_sizes_of_numpy_are_written_to_a_run(tmp_path):
    sizes = {"batch_size": np.int64(6), "eval_batch_size": np.int64(2)}
    CausalLM(CONFIG, span=SPAN, **sizes).to_run(tmp_path / "run")
    again = CausalLM.from_run(tmp_path / "run")
    assert (again.batch_size, again.eval_batch_size) == (6, 2)


def test_the_vocabulary_of_another_model_is_refused(tmp_path):
    vocabulary = Vocabulary("char", ("a", "b"))
    message = "the vocabulary has 2 symbols, but the model has 23"
    with pytest.raises(UserError, match=message):
        make_lm().to_run(tmp_path / "run", vocabulary=vocabulary)
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match=message):
        LanguageModel(TransformerXL(CONFIG), vocabulary, EvalConfig())


def test_a_run_keeps_the_evaluation_that_it_is_given(tmp_path):
    evaluation = EvalConfig(tgt_len=11, mem_len=13, eval_batch_size=1)
    make_lm().to_run(tmp_path / "run", evaluation=evaluation)
    assert txl_tf.load(tmp_path / "run").evaluation == evaluation
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["training"]["train_batch_size"], config["training"]["mem_len"]) == (
        BATCH,
        MEMORY,
    )
    with pytest.raises(UserError, match="run"):
        make_lm().to_run(tmp_path / "run")


def test_a_preset_gives_sizes_batches_and_spans():
    lm = CausalLM.from_preset("demo", n_token=23, batch_size=4, eval_span=AttentionSpan(3))
    preset = txl_tf.presets.get("demo")
    assert lm.backbone.config.n_token == 23
    assert lm.backbone.config.d_model == preset.model.d_model
    assert (lm.batch_size, lm.span) == (4, preset.training.span)
    assert (lm.eval_batch_size, lm.eval_span.mem_len) == (16, 3)
