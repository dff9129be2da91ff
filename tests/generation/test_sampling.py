import numpy as np
import pytest
import tensorflow as tf

from txl_tf.generation.sampling import BANNED_LOGIT, StandardSampler

PROBABILITIES = np.array([0.1, 0.4, 0.2, 0.3], np.float32)


def choose(log_probs, uniforms, seen=False, *, temperature=1.0, top_k=None, **settings):
    sampler = StandardSampler(temperature, top_k, **settings)
    log_probs = tf.constant(log_probs, tf.float32)
    seen = tf.broadcast_to(seen, log_probs.shape)
    return sampler.choose(log_probs, tf.constant(uniforms, tf.float32), seen).numpy()


def count(top_k=None, **settings):
    """Returns how many of 1,000 equal parts of [0, 1) fall to each token."""
    log_probs, uniforms = [np.log(PROBABILITIES)] * 1000, (np.arange(1000) + 0.5) / 1000
    tokens = choose(log_probs, uniforms, top_k=top_k, **settings)
    return np.bincount(tokens, minlength=4).tolist()


def test_each_token_has_its_share():
    assert count() == [100, 400, 200, 300]
    assert count(4) == [100, 400, 200, 300]


def test_top_k_keeps_the_likeliest():
    np.testing.assert_allclose(count(2), [0, 571, 0, 429], atol=1)
    assert count(1) == [0, 1000, 0, 0]


def test_top_p_keeps_the_likeliest_that_reach_it():
    np.testing.assert_allclose(count(top_p=0.69), [0, 571, 0, 429], atol=1)
    np.testing.assert_allclose(count(top_p=0.71), [0, 444, 222, 333], atol=1)
    assert count(top_p=0.39) == [0, 1000, 0, 0]


@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_the_nucleus_of_a_large_vocabulary_is_that_of_a_full_sort(spread):
    """With the larger spread, the first 1,024 tokens hold the nucleus; with the other, not."""
    generator = np.random.default_rng(0)
    logits = generator.normal(0, spread, (3, 5000)).astype("float32")
    weights = np.sort(np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True))[:, ::-1]
    assert (weights[:, :1024].sum(axis=1) >= 0.9).all() == (spread == 3.0)
    for uniform in (0.0, 0.3, 0.6, 0.99):
        tokens = choose(logits, [uniform] * 3, top_p=0.9)
        sizes = (np.cumsum(weights, axis=1) - weights < 0.9).sum(axis=1)
        for row, size in enumerate(sizes):
            nucleus = np.argsort(-logits[row])[:size]
            ends = np.cumsum(weights[row, :size])
            assert tokens[row] == nucleus[np.searchsorted(ends, uniform * ends[-1], "right")]


def test_the_temperature_sharpens_and_flattens():
    def share(temperature):
        weights = PROBABILITIES.astype("float64") ** (1 / temperature)
        return 1000 * weights / weights.sum()

    for temperature in (0.25, 4.0):
        np.testing.assert_allclose(count(temperature=temperature), share(temperature), atol=1)


def test_no_temperature_takes_the_likeliest():
    assert count(temperature=0.0) == [0, 1000, 0, 0]


@pytest.mark.parametrize("top_k", [None, 4])
def test_the_ends_of_the_interval_are_tokens_that_may_come(top_k):
    """The largest number below 1 must not point behind the last token, nor at a banned one."""
    uniforms = [0.0, np.nextafter(np.float32(1), np.float32(0))]
    log_probs = [[BANNED_LOGIT, -0.1, -3.0, BANNED_LOGIT]] * 2
    assert choose(log_probs, uniforms, top_k=top_k).tolist() == [1, 2]


def test_the_repetition_penalty_lowers_tokens_that_were_seen():
    """The likeliest token has -2 then, as much as the second, which is not seen."""
    log_probs, seen = [[-1.0, -2.0, -9.0, -9.0]], [[True, False, True, False]]
    settings = {"temperature": 0.0, "repetition_penalty": 2.0}
    assert choose(log_probs, [0.0], seen, **settings).tolist() == [0]
    assert choose(log_probs, [0.0], seen, **settings | {"repetition_penalty": 2.1}).tolist() == [1]
