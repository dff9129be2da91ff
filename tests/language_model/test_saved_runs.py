"""`LanguageModel.save` writes run folders that can be moved."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from small_language_model import WORDS

import txl_tf
from txl_tf.config import EvalConfig, TrainConfig
from txl_tf.errors import UserError

TEXT = "the cat sat on the mat\na cat"


def make_model(vocabulary=WORDS):
    config = txl_tf.ModelConfig(
        n_token=7, n_layer=2, d_model=6, d_embed=6, n_head=3, d_head=5, d_inner=7
    )
    return txl_tf.LanguageModel(
        txl_tf.TransformerXL(config, seed=1),
        vocabulary,
        EvalConfig(tgt_len=5, mem_len=11, same_length=True),
        dataset="mats",
        training=TrainConfig(learning_rate=3e-5),
        step=13,
    )


def test_a_folder_that_was_moved_is_loaded(tmp_path):
    lm = make_model()
    lm.save(tmp_path / "here" / "run")
    shutil.move(tmp_path / "here", tmp_path / "there")
    again = txl_tf.load(tmp_path / "there" / "run")
    for weight, expected in zip(again.model.weights, lm.model.weights, strict=True):
        np.testing.assert_array_equal(weight, expected, err_msg=expected.path)
    for name in ("config", "vocabulary", "evaluation", "dataset", "training", "step"):
        assert getattr(again, name) == getattr(lm, name), name
    np.testing.assert_array_equal(again.score([TEXT])[0].nats, lm.score([TEXT])[0].nats)


def test_a_folder_names_no_place(tmp_path):
    make_model().save(tmp_path / "run")
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) == 5  # config, id, vocabulary, weights and their index
    for path in files:
        assert str(tmp_path).encode() not in path.read_bytes()


def test_a_folder_that_holds_something_is_refused(tmp_path):
    make_model().save(tmp_path / "run")
    before = json.loads((tmp_path / "run" / "config.json").read_text())
    other = dataclasses.replace(make_model().evaluation, tgt_len=3)
    lm = txl_tf.LanguageModel(make_model().model, WORDS, other)
    with pytest.raises(UserError, match=r"run` is not empty: choose another folder"):
        lm.save(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_remote_folder_is_refused():
    with pytest.raises(UserError, match=r"`gs://bucket/run` must be a folder on this machine"):
        make_model().save("gs://bucket/run")


def test_a_model_without_a_vocabulary_is_saved(tmp_path):
    make_model(None).save(tmp_path / "run")
    assert txl_tf.load(tmp_path / "run").vocabulary is None
