"""Symbols that are added to a trained vocabulary: no mass at first, the last ids, learnable."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from small_language_model import WORDS, make_model
from tables import slow_after

import txl_tf
from txl_tf.config import EvalConfig
from txl_tf.errors import UserError

NEW = ("dog", "rug", "<pad>")
TEXT = "the cat sat on the mat\na cat sat on the mat\na mat"


def make_lm(**fields):
    """A model whose weights and biases are far from uniform."""
    config = txl_tf.ModelConfig(
        n_token=7, n_layer=2, d_model=6, d_embed=6, n_head=3, d_head=5, d_inner=7, **fields
    )
    model = txl_tf.TransformerXL(config, seed=1)
    rng = np.random.default_rng(5)
    for weight in model.trainable_variables:
        weight.assign(9 * weight + 0.3 * rng.normal(size=weight.shape))
    return txl_tf.LanguageModel(model, WORDS, EvalConfig(tgt_len=5, mem_len=11))


@pytest.mark.parametrize(
    "fields",
    slow_after(1, [{"cutoffs": (2, 5), "div_val": 2}, {"cutoffs": (2, 5)}, {}]),
    ids=["div_val", "cutoffs", "plain"],
)
def test_old_losses_stay_and_new_symbols_get_no_mass(fields):
    lm = make_lm(**fields)
    more = txl_tf.extend_vocabulary(lm, NEW)
    assert more.config == dataclasses.replace(lm.config, n_token=10)
    (old,), (new,) = (each.score([TEXT], jit="none") for each in (lm, more))
    np.testing.assert_array_equal(new.ids, old.ids)
    np.testing.assert_allclose(new.nats, old.nats, rtol=1e-6)
    hidden, _ = more.model(tf.constant(old.ids[None]), more.model.initial_memory(1, 11))
    log_probs = more.model.log_probs(hidden).numpy()[0]
    n_in_last_bin = 7 - (5 if lm.config.cutoffs else 0)
    assert (log_probs[:, 7:] <= -30 - np.log(n_in_last_bin) + 1e-4).all()
    assert np.isfinite(log_probs).all()


def test_new_symbols_have_the_last_ids_and_decode():
    more = txl_tf.extend_vocabulary(make_lm(), NEW)
    assert more.vocabulary.symbols == (*WORDS.symbols, *NEW)
    assert more.vocabulary.encode("the dog sat on a rug").tolist() == [1, 7, 3, 4, 6, 8]


def test_a_smaller_gap_gives_mass():
    lm = make_lm()
    by_gap = [
        more.score(["the dog"], jit="none")[0].total_nats
        for more in (txl_tf.extend_vocabulary(lm, NEW, bias_gap=gap) for gap in (0.0, 3.0))
    ]
    assert by_gap[0] < 10
    assert by_gap[1] == pytest.approx(by_gap[0] + 3, abs=0.5)


def test_a_new_symbol_has_gradients():
    lm = txl_tf.extend_vocabulary(make_lm(), NEW)
    ids = lm.vocabulary.encode("the dog sat on the dog")[None]
    bias = lm.model.softmax.biases[0]
    with tf.GradientTape() as tape:
        hidden, _ = lm.model(ids[:, :-1], lm.model.initial_memory(1, 11))
        nats = tf.reduce_sum(lm.model.nll(hidden, ids[:, 1:]))
    np.testing.assert_allclose(tape.gradient(nats, bias.value)[7:], [-2, 0, 0], atol=1e-3)


def test_a_run_of_it_is_saved_and_loaded(tmp_path):
    lm = make_lm(cutoffs=(2, 5))
    lm.save(tmp_path / "run")
    txl_tf.extend_vocabulary(tmp_path / "run", NEW).save(tmp_path / "more")
    back = txl_tf.load(tmp_path / "more")
    assert (back.config.n_token, back.config.cutoffs) == (10, (2, 5))
    assert back.vocabulary.symbols == (*WORDS.symbols, *NEW)


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ("dog", "`symbols` must be a list of at least one symbol. Received: 'dog'"),
        (["dog", "cat"], "`symbols` must be new. The vocabulary has: cat"),
        (["a dog"], "Each of `symbols` must be "),
        (["dog", "dog"], "`symbols` must all differ"),
    ],
)
def test_symbols_that_cannot_be_added_are_refused(symbols, message):
    with pytest.raises(UserError, match=message):
        txl_tf.extend_vocabulary(make_lm(), symbols)


def test_models_that_cannot_be_extended_are_refused():
    with pytest.raises(UserError, match="the model has no vocabulary"):
        txl_tf.extend_vocabulary(make_model(7), ["dog"])
    lm = make_lm()
    lm.quantize("int8")
    with pytest.raises(UserError, match="a quantized model cannot be extended"):
        txl_tf.extend_vocabulary(lm, ["dog"])


def test_a_gap_that_is_no_number_is_refused():
    with pytest.raises(UserError, match=r"`bias_gap` must be finite. Received: nan"):
        txl_tf.extend_vocabulary(make_lm(), NEW, bias_gap=float("nan"))
