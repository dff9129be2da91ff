"""Models saved as folders of safetensors."""

import dataclasses

import numpy as np
import pytest
from small_language_model import WORDS, make_model

import txl_tf
from txl_tf.config import EvalConfig
from txl_tf.errors import UserError
from txl_tf.programs import score


@pytest.fixture(scope="module")
def lm():
    return make_model(7, vocabulary=WORDS)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0), ("float16", 1e-3)])
def test_a_folder_of_safetensors_is_loaded_and_scored(lm, tmp_path, capsys, dtype, tolerance):
    lm.save(tmp_path / "run", safetensors=dtype)
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["config.json", "model.safetensors", "vocabulary.json"]
    back = txl_tf.load(tmp_path / "run")
    for weight, original in zip(back.model.weights, lm.model.weights, strict=True):
        np.testing.assert_allclose(weight, original, rtol=tolerance, atol=1e-6 if tolerance else 0)
    (tmp_path / "a.txt").write_text("the cat\n")
    assert score.main(["score", f"--run={tmp_path / 'run'}", str(tmp_path / "a.txt")]) == 0
    assert "a.txt" in capsys.readouterr().out
    with pytest.raises(UserError, match="holds no checkpoint"):
        txl_tf.load(tmp_path / "run", checkpoint=3)


def test_other_dtypes_of_safetensors_are_refused(lm, tmp_path):
    with pytest.raises(UserError, match="must be 'float32' or 'float16'"):
        lm.save(tmp_path / "run", safetensors="int8")
    assert not list(tmp_path.iterdir())


def test_a_model_without_a_memory_is_saved_with_settings_that_it_supports(tmp_path):
    config = dataclasses.replace(make_model(7).config, encoding="sinusoid")
    model = txl_tf.TransformerXL(config, seed=0)
    txl_tf.LanguageModel(model, WORDS, EvalConfig(64, 0)).save(tmp_path / "run")
    assert txl_tf.load(tmp_path / "run").training.mem_len == 0
