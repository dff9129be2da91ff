import numpy as np
import pytest
from small_encodings import make_model as make_encoded_model
from small_language_model import SPANS, make_transformer
from small_runs import Text
from tables import slow_after

from txl_tf.config import EvalConfig
from txl_tf.errors import UserError
from txl_tf.lab import context_losses
from txl_tf.lab.context_losses import (
    ContextReader,
    compute_losses,
    draw_positions,
)
from txl_tf.language_model import LanguageModel

TEXT = Text(np.random.default_rng(3).integers(0, 13, 211))
POSITIONS = np.array([40, 41, 57, 100, 209, 210])


def make_config(span, tgt_len=5):
    names = ("mem_len", "same_length", "counts_self", "clamp_len")
    return EvalConfig(tgt_len=tgt_len, **{name: getattr(span, name) for name in names})


def make_lm(span):
    return LanguageModel(make_transformer(), None, make_config(span))


@pytest.mark.parametrize(
    ("span", "length"),
    slow_after(2, [(SPANS[3], 23), (SPANS[0], 11), (SPANS[4], 7), (SPANS[2], 40), (SPANS[3], 1)]),
    ids=str,
)
def test_a_target_has_the_loss_that_scoring_gives_after_its_context(span, length):
    lm = make_lm(span)
    found = ContextReader(lm, 40, jit="none").read(TEXT, POSITIONS, length)
    if not span.mem_len:  # one window holds the whole context
        lm.evaluation = make_config(span, length)
    texts = [TEXT.read(at - length, at + 1) for at in POSITIONS]
    expected = [score.nats[-1] for score in lm.score(texts, jit="none")]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_a_context_with_more_tokens_than_places_is_cut_off():
    config = EvalConfig(tgt_len=3, mem_len=0)
    lm = LanguageModel(make_encoded_model("learned"), None, config)  # 5 places
    reader = ContextReader(lm, 9, jit="none")
    text = Text(TEXT.read(0, 211) % 19)
    losses = [reader.read(text, POSITIONS, length) for length in (4, 5, 9)]
    assert np.abs(losses[0] - losses[1]).max() > 0.01
    np.testing.assert_allclose(losses[2], losses[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("length", slow_after(1, [9, 23]))
def test_batches_do_not_change_losses(monkeypatch, length):
    reader = ContextReader(make_lm(SPANS[2]), 23, jit="none")
    expected = reader.read(TEXT, POSITIONS, length)
    monkeypatch.setattr(context_losses, "_MAX_TOKENS", 4 * 9)
    counts = []
    found = reader.read(TEXT, POSITIONS, length, report=counts.append)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert counts == {9: [4 * 9, 2 * 9], 23: [6 * 23]}[length]


def test_positions_have_the_longest_context_before_them():
    drawn = draw_positions(100, 30, 20, seed=1)
    assert len(set(drawn)) == 20
    assert drawn.min() >= 30
    assert drawn.max() < 100
    assert (np.diff(drawn) > 0).all()
    np.testing.assert_array_equal(drawn, draw_positions(100, 30, 20, seed=1))
    assert (drawn != draw_positions(100, 30, 20, seed=2)).any()
    np.testing.assert_array_equal(draw_positions(100, 30, 0, seed=1), np.arange(30, 100))
    np.testing.assert_array_equal(draw_positions(100, 30, 500, seed=1), np.arange(30, 100))


def test_a_split_that_is_too_short_is_refused():
    with pytest.raises(UserError, match=r"longer than the longest context, 100. Received: 100"):
        draw_positions(100, 100, 5, seed=0)


def test_losses_of_several_lengths_are_rows():
    reader = ContextReader(make_lm(SPANS[1]), 7, jit="none")
    counts = []
    found = compute_losses(reader, TEXT, POSITIONS, [3, 7], report=counts.append)
    assert sum(counts) == 6 * (3 + 7)
    np.testing.assert_array_equal(found[1], reader.read(TEXT, POSITIONS, 7))
    assert found.shape == (2, 6)
