"""What models are exported, and the program."""

import json

import numpy as np
import pytest
import tensorflow as tf
from small_language_model import make_model

import txl_tf.export
from txl_tf.cached_model import CachedModel
from txl_tf.inference.export import export_saved_model


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_mixed_policy_is_exported(tmp_path, policy):
    """Adaptive softmax, no vocabulary: the losses are those of the live model."""
    config = txl_tf.ModelConfig(
        *(23, 2, 6, 6, 3, 5, 7), cutoffs=(5, 12), div_val=2, dropout=0.0, dropatt=0.0
    )
    model = txl_tf.TransformerXL(config, seed=1, dtype=policy)
    span, ids = txl_tf.AttentionSpan(11), np.random.default_rng(3).integers(0, 23, (2, 5), "int32")
    names = export_saved_model(str(tmp_path / "out"), CachedModel(model, span, 5), None)
    assert names == ("score_ids", "initial_memory", "step")
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    found = loaded.signatures["score_ids"](ids=tf.constant(ids), lengths=tf.constant([5, 5]))
    hidden, _ = model(ids[:, :-1], model.initial_memory(2, 11), span=span)
    expected = model.nll(hidden, ids[:, 1:])
    np.testing.assert_allclose(found["nats"][:, 1:], expected, rtol=0, atol=2e-2)


def test_a_saved_model_scores_with_the_temperature_of_the_run(tmp_path):
    lm, ids = make_model(7, temperature=1.7), np.array([[3, 1, 4, 1, 5]], np.int32)
    lm.export(tmp_path / "out")
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    found = loaded.signatures["score_ids"](ids=tf.constant(ids), lengths=tf.constant([5]))
    (score,) = lm.score(list(ids))
    np.testing.assert_allclose(found["nats"][0, 1:], score.nats, rtol=1e-5)
    assert abs(score.total_nats - make_model(7).score(list(ids))[0].total_nats) > 0.1


def test_the_program_exports_a_run(tmp_path, capsys):
    make_model(7).save(tmp_path / "run")
    arguments = ["--run", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--mem_len=3"]
    assert txl_tf.export.main(["export", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "a SavedModel of step 0 with score_ids, initial_memory, step." in printed
    assert "The run has no vocabulary: no signature takes texts." in printed
    assert json.loads((tmp_path / "out" / "txl_tf.json").read_text())["span"]["mem_len"] == 3
    assert txl_tf.export.main(["export", *arguments]) == 1
    assert "is not empty" in capsys.readouterr().err


def test_the_program_refuses_a_span_that_there_is_not(tmp_path, capsys):
    make_model(7).save(tmp_path / "run")
    arguments = ["--run", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--clamp_len=0"]
    assert txl_tf.export.main(["export", *arguments]) == 2
    assert "`clamp_len` must be -1 (off) or positive" in capsys.readouterr().err
