"""Symbols that are added to a trained vocabulary: no mass at first, the last ids, learnable."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from small_language_model import WORDS, make_model

import txl_tf
from txl_tf.config import EvalConfig
from txl_tf.data import Vocabulary
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


CONFIGS = {
    "plain": {},
    "cutoffs": {"cutoffs": (2, 5)},
    "div_val": {"cutoffs": (2, 5), "div_val": 2},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_old_losses_stay_and_new_symbols_get_no_mass(name):
    lm = make_lm(**CONFIGS[name])
    more = txl_tf.extend_vocabulary(lm, NEW)
    assert more.config == dataclasses.replace(lm.config, n_token=10)
    (old,), (new,) = lm.score([TEXT]), more.score([TEXT])
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
    assert np.isfinite(more.score(["the dog sat"])[0].nats).all()


def test_a_smaller_gap_gives_mass():
    lm = make_lm()
    by_gap = [
        txl_tf.extend_vocabulary(lm, NEW, bias_gap=gap).score(["the dog"])[0].total_nats
        for gap in (0.0, 3.0)
    ]
    assert by_gap[0] < 10
    assert by_gap[1] == pytest.approx(by_gap[0] + 3, abs=0.5)


def test_a_new_symbol_is_learnt():
    """By gradient steps on a text that has it."""
    lm = txl_tf.extend_vocabulary(make_lm(), NEW)
    ids = tf.constant(lm.vocabulary.encode("the dog sat on the dog\n" * 3)[None])
    optimizer = tf.keras.optimizers.Adam(0.05)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            hidden, _ = lm.model(ids[:, :-1], lm.model.initial_memory(1, 11))
            nats = tf.reduce_mean(lm.model.nll(hidden, ids[:, 1:]))
        weights = lm.model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(nats, weights), weights, strict=True))
        return nats

    first = float(step())
    for _ in range(120):
        last = float(step())
    assert first > 5
    assert last < 1


def test_a_run_of_it_is_saved_and_loaded(tmp_path):
    lm = make_lm(cutoffs=(2, 5))
    lm.save(tmp_path / "run")
    txl_tf.extend_vocabulary(tmp_path / "run", NEW).save(tmp_path / "more")
    back = txl_tf.load(tmp_path / "more")
    assert (back.config.n_token, back.config.cutoffs) == (10, (2, 5))
    np.testing.assert_allclose(back.score([TEXT])[0].nats, lm.score([TEXT])[0].nats, atol=1e-6)


def test_characters_are_added_to_characters():
    lm = make_model(3, vocabulary=Vocabulary("char", ("a", "b", " ")))
    assert txl_tf.extend_vocabulary(lm, ["ß"]).vocabulary.encode("aß").tolist() == [0, 3]


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ([], "`symbols` must be a list of at least one symbol"),
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
