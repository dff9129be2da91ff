"""The temperature of the softmax in evaluation and scoring."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from small_lstm import CONFIG as LSTM_CONFIG
from small_lstm import make_model as make_lstm
from small_model import make_ids, make_model
from small_runs import MODEL, TRAINING, Text

import txl_tf
from txl_tf.config import AttentionSpan
from txl_tf.layers import bin_loss
from txl_tf.models.architecture import make_frozen_model
from txl_tf.runs.folder import RunConfig
from txl_tf.scoring.evaluator import Evaluator
from txl_tf.scoring.scorer import Scorer
from txl_tf.scoring.text_chunks import TextChunk, TextName

TEMPERATURE, SPAN = 1.7, AttentionSpan(7)
EVALUATION = txl_tf.EvalConfig(5, 7, eval_batch_size=2)
HOT = dataclasses.replace(EVALUATION, temperature=TEMPERATURE)
TEXT = Text(make_ids(31)[0])
# A projected embedding, and the plain one; the biases of the softmax are random in both.
WIDTHS = pytest.mark.parametrize("d_embed", [6, 10])


def heat(log_probs):
    """Returns log p of the distribution that is proportional to p ** (1 / temperature)."""
    scaled = np.asarray(log_probs, np.float64) / TEMPERATURE
    return scaled - np.log(np.exp(scaled).sum(axis=-1, keepdims=True))


def read(model, ids):
    return model(ids, model.initial_memory(len(ids), SPAN.mem_len), span=SPAN)[0]


def pick(log_probs, ids):
    return -np.take_along_axis(log_probs, ids[..., None], axis=-1)[..., 0]


@WIDTHS
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "chunks"])
def test_losses_are_those_of_the_flattened_distribution(d_embed, is_whole, monkeypatch):
    if not is_whole:
        monkeypatch.setattr(bin_loss, "LOGITS_PER_CHUNK", 23)
    model, ids = make_model(d_embed=d_embed), make_ids()
    hidden = read(model, ids)
    found = model.nll(hidden, ids, temperature=TEMPERATURE)
    expected = pick(heat(model.log_probs(hidden)), ids)
    np.testing.assert_allclose(found, expected, rtol=1e-5)  # float32


def test_a_temperature_of_1_changes_no_loss():
    model, ids = make_model(), make_ids()
    hidden = read(model, ids)
    np.testing.assert_array_equal(model.nll(hidden, ids, temperature=1.0), model.nll(hidden, ids))


def test_an_evaluation_has_the_losses_of_the_flattened_distribution():
    model = make_model()
    plain, hot = (Evaluator(model, config).score(TEXT) for config in (EVALUATION, HOT))
    assert plain.tokens == hot.tokens == len(TEXT) - 1
    assert abs(hot.total_nats / plain.total_nats - 1) > 0.05
    hidden, ids, targets = [], TEXT.ids[None, :-1], TEXT.ids[None, 1:]
    lanes = Evaluator(model, dataclasses.replace(HOT, eval_batch_size=1))
    memory = model.initial_memory(1, SPAN.mem_len)
    for start in range(0, ids.shape[1], 5):
        of_segment, memory = model(ids[:, start : start + 5], memory, span=SPAN)
        hidden.append(of_segment)
    expected = pick(heat(model.log_probs(tf.concat(hidden, axis=1))), targets)
    assert lanes.score(TEXT).total_nats == pytest.approx(expected.sum(), rel=1e-5)


def test_scores_of_texts_have_the_temperature():
    model, ids = make_model(), make_ids(13)
    config = dataclasses.replace(HOT, tgt_len=13, mem_len=31)
    scorer = Scorer(model, config, mask_empty_memory=False, jit="none")
    ((_, score),) = scorer.score([[TextChunk(ids[0], None, None, (0, 0), TextName("", 1))]])
    wide = model(ids, model.initial_memory(2, 31), span=AttentionSpan(31))[0]
    expected = pick(heat(model.log_probs(wide))[:, :-1], ids[:, 1:])
    np.testing.assert_allclose(score.nats, expected[0], rtol=1e-5)


def test_losses_of_an_lstm_have_the_temperature():
    config = dataclasses.replace(LSTM_CONFIG, cutoffs=(), div_val=1)
    model, ids = make_lstm(config), make_ids()
    cached = make_frozen_model(model, AttentionSpan(0), 5, temperature=TEMPERATURE)
    nats, _ = cached.score(tf.constant(ids), tf.constant(ids[:, ::-1]), cached.initial_state(2))
    hidden, _ = model(ids, model.initial_memory(2))
    np.testing.assert_allclose(nats, pick(heat(model.log_probs(hidden)), ids[:, ::-1]), rtol=1e-5)


def test_an_adaptive_softmax_is_refused():
    model = make_model(cutoffs=(5, 12))
    message = r"`temperature` must be 1 with `cutoffs`: .* Received: temperature=1.7"
    with pytest.raises(txl_tf.UserError, match=message):
        Evaluator(model, HOT)
    with pytest.raises(txl_tf.UserError, match=message):
        Scorer(model, HOT)
    with pytest.raises(txl_tf.UserError, match=message):
        RunConfig("words", dataclasses.replace(MODEL, cutoffs=(5, 12)), TRAINING, HOT)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_that_cannot_be_is_an_error(temperature):
    with pytest.raises(txl_tf.UserError, match=r"`temperature` must be (positive|a finite number)"):
        txl_tf.EvalConfig(temperature=temperature)
