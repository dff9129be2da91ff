"""`LanguageModel.save` writes run folders with safetensors."""

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


@pytest.mark.parametrize(
    ("encoding", "n_positions", "mem_len", "spans"),
    [("sinusoid", 0, 0, (64, 0)), ("learned", 64, 0, (64, 0)), ("shaw", 16, 640, (1, 15))],
)
def test_a_new_model_is_saved_with_settings_of_training_that_it_supports(
    encoding, n_positions, mem_len, spans, tmp_path
):
    config = dataclasses.replace(
        make_model(7).config, encoding=encoding, n_positions=n_positions, untie_r=False
    )
    lm = txl_tf.LanguageModel(txl_tf.TransformerXL(config, seed=0), WORDS, EvalConfig(64, mem_len))
    lm.save(tmp_path / "run")
    training = txl_tf.load(tmp_path / "run").training
    assert (training.tgt_len, training.mem_len) == spans
