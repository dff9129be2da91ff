"""Recurrent models with frozen weights, and the loops that read with it."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from numpy_models import compute_recurrent_nats, list_weights
from small_lstm import CONFIG, QRNN_CONFIG, STARTS, make_ids, make_model
from small_model import COMPILED
from small_runs import Text
from tables import slow_after

import txl_tf
from txl_tf.config import AttentionSpan, EvalConfig
from txl_tf.errors import UserError
from txl_tf.lab.baselines.cached_recurrent import CachedRecurrent
from txl_tf.lab.context_losses import ContextReader
from txl_tf.lab.text_attention import read_attention
from txl_tf.layers.memory import clear_rows
from txl_tf.models.architecture import make_frozen_model
from txl_tf.scoring.continuations import Continuation, ContinuationScorer
from txl_tf.scoring.evaluator import Evaluator

pytestmark = pytest.mark.slow

SPAN, TGT_LEN = AttentionSpan(0), 5
EVALUATION = EvalConfig(tgt_len=TGT_LEN, mem_len=0, eval_batch_size=1)
TOLERANCE = {"rtol": 0, "atol": 1e-5}  # losses of the order of 10, float32


@pytest.fixture(scope="module", params=[CONFIG, QRNN_CONFIG], ids=["lstm", "qrnn"])
def model(request):
    return make_model(request.param)


def make_reader(model):
    reader = make_frozen_model(model, SPAN, TGT_LEN)
    assert isinstance(reader, CachedRecurrent)
    return reader


def list_nats(model, ids, starts=None):
    return compute_recurrent_nats(list_weights(model), model.config, ids, starts)


@COMPILED
def test_segments_of_any_lengths_give_the_losses_of_one_pass(model, jit):
    reader, ids, starts = make_reader(model), make_ids(), STARTS
    score = tf.function(reader.score, jit_compile=jit, autograph=False)
    state, found = reader.initial_state(2), []
    for begin, end in ((0, 1), (1, 6), (6, 9), (9, 14)):
        nats, state = score(
            tf.constant(ids[:, begin:end]),
            tf.constant(ids[:, begin + 1 : end + 1]),
            state,
            document_starts=tf.constant(starts[:, begin:end]),
        )
        found.append(nats)
    found = np.concatenate(found, axis=1)
    for row in range(2):
        expected = list_nats(model, ids[row], starts[row])
        np.testing.assert_allclose(found[row], expected, **TOLERANCE)


def test_padding_changes_nothing(model):
    reader, ids = make_reader(model), make_ids()
    state, found = reader.initial_state(2), []
    for counts in ((5, 0), (2, 3), (0, 5)):
        padded = np.full((2, 5), 11, np.int32)
        for row, count in enumerate(counts):
            begin = sum(map(len, (part[row] for part in found)))
            padded[row, :count] = ids[row, begin : begin + count]
        nats, state = reader.score_ids(tf.constant(padded), state, tf.constant(counts))
        found.append([nats[row, :count] for row, count in enumerate(counts)])
        assert not any(np.any(nats[row, count:]) for row, count in enumerate(counts))
    for row, length in enumerate((7, 8)):
        losses = np.concatenate([part[row] for part in found])
        assert losses[0] == 0  # the first token has no context
        np.testing.assert_allclose(losses[1:], list_nats(model, ids[row, :length]), **TOLERANCE)
        following = -reader.log_probs(state)[row, ids[row, length]]
        expected = list_nats(model, ids[row, : length + 1])[-1]
        np.testing.assert_allclose(following, expected, **TOLERANCE)


def test_a_reset_row_begins_anew(model):
    reader, ids = make_reader(model), make_ids()
    _, state = reader.read(tf.constant(ids), reader.initial_state(2))
    state = clear_rows(state, tf.constant([False, True]))
    assert state.n_read.numpy().tolist() == [1, 0]
    nats, _ = reader.score(ids[:, :-1], ids[:, 1:], state)
    np.testing.assert_allclose(nats[1], list_nats(model, ids[1]), **TOLERANCE)
    assert np.abs(nats[0] - list_nats(model, ids[0])).max() > 0.01


def test_texts_of_any_lengths_are_scored(model):
    lm = txl_tf.LanguageModel(model, None, EVALUATION)
    texts = [make_ids(length, batch=1, seed=length)[0] for length in (2, 3, 9, 31, 4)]
    for text, score in zip(texts, lm.score(texts, batch_size=3), strict=True):
        np.testing.assert_allclose(score.nats, list_nats(model, text), **TOLERANCE)


def test_an_evaluation_of_one_lane_is_one_pass(model):
    ids, places = make_ids(67, batch=1)[0], [7, 8, 30]
    config = dataclasses.replace(EVALUATION, reset_at_documents=True)
    score = Evaluator(model, config).score(Text(ids, places))
    starts = np.isin(np.arange(67), places)
    assert score.total_nats == pytest.approx(list_nats(model, ids, starts).sum(), rel=1e-6)


def test_lanes_are_warmed_by_four_segments(model):
    config = dataclasses.replace(EVALUATION, eval_batch_size=2)
    lanes = Evaluator(model, config).cut_lanes(Text(make_ids(97, batch=1)[0]))
    assert lanes.warm_len == 4 * TGT_LEN


def test_sliding_windows_begin_with_an_empty_state(model):
    ids = make_ids(23, batch=1)[0]
    evaluator = Evaluator(model, EVALUATION)
    score = evaluator.score_lanes(evaluator.cut_lanes(Text(ids), stride=1))
    windows = [list_nats(model, ids[at - TGT_LEN : at + 1])[-1] for at in range(TGT_LEN + 1, 23)]
    first = list_nats(model, ids[: TGT_LEN + 1])
    assert score.total_nats == pytest.approx(first.sum() + np.sum(windows), rel=1e-6)


@pytest.mark.parametrize("context_len", slow_after(1, [13, 3]))
def test_exact_contexts_are_windows(model, context_len):
    ids, positions = make_ids(40, batch=1)[0], np.array([13, 20, 39])
    lm = txl_tf.LanguageModel(model, None, EVALUATION)
    found = ContextReader(lm, context_len).read(Text(ids), positions, context_len)
    expected = [list_nats(model, ids[at - context_len : at + 1])[-1] for at in positions]
    np.testing.assert_allclose(found, expected, **TOLERANCE)


def test_continuations_are_scored(model):
    ids = make_ids(13, batch=1)[0]
    scorer = ContinuationScorer(model, EVALUATION, batch_size=2)
    found = scorer.score([Continuation(ids[:4], ids[4:]), Continuation(ids[:2], ids[2:3])])
    expected = [list_nats(model, ids)[3:].sum(), list_nats(model, ids)[1]]
    np.testing.assert_allclose([-score.log_prob for score in found], expected, rtol=1e-6)


def test_a_span_of_attention_is_refused_by_all_that_read(model):
    evaluation = dataclasses.replace(EVALUATION, clamp_len=5)
    lm = txl_tf.LanguageModel(model, None, evaluation)
    readings = [
        lambda: make_frozen_model(model, evaluation.span, TGT_LEN),
        lambda: Evaluator(model, evaluation),
        lambda: ContextReader(lm, 9),
        lambda: lm.score([make_ids()[0]]),
    ]
    for read in readings:
        with pytest.raises(UserError, match=r"`clamp_len` must be -1 .* Received: clamp_len=5"):
            read()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda lm, _: lm.generate(make_ids()[0]), r"generation needs .*: its loop keeps keys"),
        (lambda lm, _: read_attention(lm, make_ids()[0]), r"an analysis of attention needs"),
        (lambda lm, out: lm.export(out), r"an export needs model_type=transformer_xl"),
        (
            lambda lm, _: lm.quantize("int8"),
            r"quantization needs .* model_type=(lstm|qrnn)",
        ),
    ],
    ids=["generate", "attention", "export", "quantize"],
)
def test_uses_that_need_attention_are_refused(model, tmp_path, call, message):
    lm = txl_tf.LanguageModel(model, None, EVALUATION)
    with pytest.raises(UserError, match=message):
        call(lm, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_saved_run_comes_back(model, tmp_path):
    training = txl_tf.TrainConfig(mem_len=0)
    lm = txl_tf.LanguageModel(model, None, EVALUATION, training=training, step=3)
    lm.save(tmp_path / "run")
    lm = txl_tf.load(tmp_path / "run")
    assert lm.config == model.config
    text = make_ids(9, batch=1)[0]
    np.testing.assert_allclose(lm.score([text])[0].nats, list_nats(model, text), **TOLERANCE)
    with pytest.raises(UserError, match=r"quantization needs model_type=transformer_xl"):
        txl_tf.load(tmp_path / "run", precision="int8")
