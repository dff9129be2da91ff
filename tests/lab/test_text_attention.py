"""The attention within a text beside float64 NumPy, and with the losses of the model."""

import numpy as np
import pytest
from numpy_models import soften, trace_text
from small_model import LOSS_TOLERANCE, make_config
from tables import slow_after

import txl_tf
from txl_tf.config import AttentionSpan, EvalConfig
from txl_tf.data import Vocabulary
from txl_tf.errors import UserError
from txl_tf.lab import text_attention
from txl_tf.lab.attention_reader import TERMS
from txl_tf.lab.text_attention import read_attention

TGT_LEN = 5
IDS = np.random.default_rng(3).integers(0, 23, 23, dtype="int32")  # not a whole number of segments
CLOSE = {"rtol": 0, "atol": 1e-5}
CASES = {
    "plain": ({}, AttentionSpan(7)),
    "same_length": ({"untie_r": True}, AttentionSpan(7, same_length=True, clamp_len=4)),
    "counts_self": ({}, AttentionSpan(3, same_length=True, counts_self=True)),
    "one_head": ({"n_head": 1}, AttentionSpan(7, same_length=True)),
    "adaptive": (
        {"cutoffs": (5, 11), "div_val": 2, "d_embed": 8, "proj_same_dim": False},
        AttentionSpan(7, clamp_len=9),
    ),
    "no_memory": ({}, AttentionSpan(0)),
    "all_in_memory": ({}, AttentionSpan(31)),
}


def make_lm(name, vocabulary=None):
    fields, span = CASES[name]
    model = txl_tf.TransformerXL(make_config(**fields), seed=1)
    rng = np.random.default_rng(7)
    for variable in model.trainable_variables:  # every weight random, and large enough to matter
        variable.assign(rng.normal(scale=0.3, size=variable.shape))
    return txl_tf.LanguageModel(model, vocabulary, EvalConfig(tgt_len=TGT_LEN, **vars(span)))


def trace(lm, **arguments):
    return trace_text(lm.model, IDS, lm.span, TGT_LEN, **arguments)


def cut(array, lm):
    """Returns an array of a trace without the columns of the empty memory."""
    return array[..., lm.span.mem_len :]


@pytest.mark.parametrize(
    ("name", "masks_empty"),
    slow_after(
        4,
        [
            ("same_length", False),
            ("adaptive", True),
            ("counts_self", True),
            ("no_memory", True),
            ("one_head", True),
            ("all_in_memory", False),
        ],
    ),
)
def test_weights_and_terms_are_those_of_the_papers_equations(name, masks_empty):
    lm = make_lm(name)
    found = read_attention(lm, IDS, mask_empty_memory=masks_empty)
    expected = trace(lm, masks_empty=masks_empty)
    visible = cut(expected.mask & expected.is_token, lm)
    np.testing.assert_array_equal(found.visible, visible)
    np.testing.assert_allclose(found.weights, cut(expected.weights, lm) * visible, **CLOSE)
    assert tuple(found.terms) == TERMS
    for letter, term in zip(TERMS, expected.terms, strict=True):
        np.testing.assert_allclose(
            found.terms[letter], cut(term, lm) * visible, err_msg=letter, **CLOSE
        )
    scores = np.where(visible, cut(expected.terms.sum(axis=0), lm), 0)
    np.testing.assert_allclose(found.scores, scores, **CLOSE)
    assert {array.dtype for array in (found.weights, *found.terms.values())} == {np.dtype("f4")}


@pytest.mark.parametrize("name", slow_after(1, ["same_length", "adaptive", "no_memory"]))
def test_the_weights_lead_to_the_losses_of_the_model(name):
    lm = make_lm(name)
    weights = read_attention(lm, IDS).weights
    empty = np.zeros((*weights.shape[:-1], lm.span.mem_len))
    traced = trace(lm, masks_empty=True, use_weights=np.concatenate([empty, weights], axis=-1))
    nats = lm.score([IDS])[0].nats
    np.testing.assert_allclose(traced.nats, nats, rtol=0, atol=LOSS_TOLERANCE)
    # The comparison sees a weight that is wrong.
    flat = np.concatenate([empty, soften(0 * weights, np.tri(len(IDS), dtype=bool))], axis=-1)
    other = trace(lm, masks_empty=True, use_weights=flat)
    assert np.abs(other.nats - nats).max() > 100 * LOSS_TOLERANCE


def test_chosen_layers_and_heads_are_parts_of_all():
    lm = make_lm("plain")
    every, chosen = read_attention(lm, IDS), read_attention(lm, IDS, layers=(2, 0), heads=1)
    assert (chosen.layers, chosen.heads) == ((2, 0), (1,))
    assert (every.layers, every.heads) == ((0, 1, 2), (0, 1, 2))
    np.testing.assert_array_equal(chosen.weights, every.weights[[2, 0]][:, [1]])
    for letter in TERMS:
        np.testing.assert_array_equal(chosen.terms[letter], every.terms[letter][[2, 0]][:, [1]])


def test_a_text_is_named_by_its_symbols():
    symbols = tuple(map(str, range(10, 33)))  # bytes: 10 is a line break, 32 a space
    lm = make_lm("plain", Vocabulary("byte", symbols))
    found = read_attention(lm, b"\n\x0c \n")
    assert found.ids.tolist() == [0, 2, 22, 0]
    assert found.symbols == (r"\n", r"\x0c", " ", r"\n")
    assert read_attention(make_lm("plain"), found.ids).symbols is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": ()}, r"`layers` must be one or more numbers from 0 to 2. Received: \(\)"),
        ({"heads": -1}, "`heads` must be one or more numbers from 0 to 2. Received: -1"),
    ],
)
def test_layers_and_heads_must_exist(arguments, message):
    with pytest.raises(UserError, match=message):
        read_attention(make_lm("plain"), IDS, **arguments)


def test_arrays_that_would_be_too_large_are_refused():
    lm = make_lm("plain")
    message = (
        r"the attention of 9,000 tokens to 9,000 in 9 heads would take 13.6 GiB, and at most 2 GiB "
        "are allowed: choose fewer layers or heads, or a shorter text"
    )
    with pytest.raises(UserError, match=message):
        read_attention(lm, np.zeros(9000, np.int32))


def test_only_the_chosen_heads_count_against_the_limit(monkeypatch):
    lm = make_lm("plain")
    monkeypatch.setattr(text_attention, "MAX_BYTES", 5 * 4 * 23 * 23)
    assert read_attention(lm, IDS, layers=1, heads=2).weights.shape == (1, 1, 23, 23)
    with pytest.raises(UserError, match="in 3 heads would take"):
        read_attention(lm, IDS, layers=1)
