import math

import numpy as np
import pytest
import tensorflow as tf
from golden_cases import EVALUATIONS, load_case, parse_evaluation

import txl_tf
from txl_tf.config import EvalConfig
from txl_tf.data import Vocabulary
from txl_tf.errors import UserError
from txl_tf.inference.generation import choose_token
from txl_tf.release import load_model

WORDS = Vocabulary("word", ("<eos>", "the", "cat", "sat", "on", "mat", "a"), line_end="<eos>")


def make_model(n_token, *, mem_len=11, tgt_len=5, vocabulary=None, **fields):
    config = txl_tf.ModelConfig(
        n_token=n_token, n_layer=2, d_model=6, d_embed=6, n_head=3, d_head=5, d_inner=7
    )
    evaluation = EvalConfig(tgt_len=tgt_len, mem_len=mem_len, **fields)
    model = txl_tf.TransformerXL(config, seed=1)
    for weight in model.trainable_variables:  # far from uniform, so that each token matters
        weight.assign(9 * weight)
    return txl_tf.LanguageModel(model, vocabulary, evaluation)


@pytest.mark.parametrize(("name", "key"), EVALUATIONS)
def test_scores_are_those_of_the_2019_code(name, key):
    """Each row of the golden text is scored as a text of its own."""
    case = load_case(name)
    tgt_len, span = parse_evaluation(key)
    evaluation = EvalConfig(tgt_len=tgt_len, **span.to_json())
    lm = txl_tf.LanguageModel(load_model(case.checkpoint, case.config), None, evaluation)
    scores = lm.score(case.golden["tokens"], mask_empty_memory=False)
    for score, expected in zip(scores, case.golden[key], strict=True):
        np.testing.assert_allclose(score.nats[: len(expected)], expected, rtol=0, atol=2e-5)


def test_a_score_adds_up():
    lm = make_model(7, vocabulary=WORDS)
    (score,) = lm.score(["the cat sat on the mat\na cat"])
    assert score.tokens == len(score.ids) - 1 == 8
    assert score.total_nats == pytest.approx(sum(score.nats.tolist()))
    assert score.bpc == pytest.approx(score.total_nats / 8 / math.log(2))
    assert score.perplexity == pytest.approx(2**score.bpc)


def test_the_likeliest_tokens_are_those_of_one_pass():
    """Greedy: each new token is the likeliest after all before it, read without memory."""
    lm = make_model(13, mem_len=37, tgt_len=5, same_length=True)
    prompt = np.array([2, 7, 1, 8, 2, 8, 1], np.int32)
    ids = np.concatenate([prompt, lm.generate(prompt, max_new_tokens=17, temperature=0)])
    memory = lm.model.initial_memory(1, 37)
    hidden, _ = lm.model(tf.constant(ids[None]), memory, span=lm.span)
    likeliest = lm.model.log_probs(hidden).numpy()[0].argmax(-1)
    np.testing.assert_array_equal(ids[len(prompt) :], likeliest[len(prompt) - 1 : -1])


def test_equal_seeds_give_equal_texts():
    lm = make_model(7, vocabulary=WORDS)
    texts = [lm.generate("the cat", max_new_tokens=23, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_a_text_goes_on_with_the_space_between_two_words():
    lm = make_model(7, vocabulary=WORDS)
    text = "the cat" + lm.generate("the cat", max_new_tokens=13, top_k=3)
    assert len(WORDS.encode(text)) == 15


def test_top_k_and_top_p_keep_the_likeliest():
    log_probs = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))
    generator = np.random.default_rng(0)

    def draw(top_k, top_p):
        return {choose_token(log_probs, 1.0, top_k, top_p, generator) for _ in range(200)}

    assert draw(None, None) == draw(9, 1.0) == {0, 1, 2, 3}
    assert draw(2, None) == {1, 3}
    assert draw(None, 0.8) == {1, 2, 3}
    assert draw(None, 0.39) == draw(1, None) == {1}


def test_the_temperature_sharpens():
    log_probs = np.log(np.array([0.3, 0.7], np.float32))
    generator = np.random.default_rng(0)
    counts = [
        sum(choose_token(log_probs, temperature, None, None, generator) for _ in range(1000))
        for temperature in (4.0, 1.0, 0.25)
    ]
    # p(1) is 1 / (1 + (3/7)^(1/temperature)): .553, .7, .967; two standard deviations are .03.
    np.testing.assert_allclose(counts, [553, 700, 967], atol=45)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": ""}, r"`prompt` must hold at least one token"),
        ({"temperature": -1.0}, r"`temperature` must be 0 or more"),
        ({"temperature": math.nan}, r"`temperature` must be 0 or more"),
        ({"top_k": 0}, r"`top_k` must be positive"),
        ({"top_p": 0.0}, r"`top_p` must be in \(0, 1\]"),
        ({"max_new_tokens": -1}, r"`max_new_tokens` must not be negative"),
        ({"prompt": "the dog"}, r"1 unknown \('dog'\), the first at offset 1"),
        ({"prompt": np.array([7])}, r"ids must be at least 0 and below 7. Received: id 7"),
        ({"prompt": np.array([[1]])}, r"a text must be a `str`, or ids in a row"),
    ],
)
def test_bad_arguments_of_generate_are_refused(arguments, message):
    lm = make_model(7, vocabulary=WORDS)
    with pytest.raises(UserError, match=message):
        lm.generate(**{"prompt": "the"} | arguments)


def test_texts_need_a_vocabulary():
    with pytest.raises(UserError, match=r"the run has no vocabulary: pass ids, not text"):
        make_model(7).score(["the cat"])
