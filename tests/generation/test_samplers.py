"""Rules of users: they run in the compiled loop, and other numbers need no compilation."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from small_language_model import WORDS, make_model

from txl_tf.errors import UserError
from txl_tf.generation.generator import Generator
from txl_tf.generation.sampling import (
    BANNED_LOGIT,
    Sampler,
    SamplingOptions,
    StandardSampler,
    draw_by_weights,
)
from txl_tf.generation.session import Session
from txl_tf.models.cached_model import make_cached

N_TOKEN, N_NEW = len(WORDS), 43


class MinP(Sampler):
    """Draws from the tokens that have a share of the probability of the likeliest."""

    n_traces = 0

    def __init__(self, min_p, temperature=1.0, bias=(0.0,) * N_TOKEN):
        self.min_p, self.temperature = float(min_p), float(temperature)
        self.bias = np.array(bias)  # float64

    def choose(self, log_probs, uniforms, seen):
        MinP.n_traces += 1
        weights = tf.nn.softmax(log_probs / self.temperature + self.bias)
        least = self.min_p * tf.reduce_max(weights, axis=-1, keepdims=True)
        return draw_by_weights(tf.where(weights >= least, weights, 0.0), uniforms)


class Newest(Sampler):
    """Takes the last, or first, token that the text does not contain, as int64."""

    def __init__(self, takes_last):
        self.takes_last = takes_last

    def choose(self, log_probs, uniforms, seen):
        is_new = tf.logical_and(tf.logical_not(seen), log_probs > BANNED_LOGIT)
        ids = tf.range(N_TOKEN, dtype=tf.int64)
        scores = tf.where(is_new, ids if self.takes_last else N_TOKEN - 1 - ids, -1)
        return tf.argmax(scores, axis=-1)


@pytest.fixture(scope="module")
def lm():
    return make_model(N_TOKEN, vocabulary=WORDS)


@pytest.fixture(scope="module")
def generator(lm):
    """It compiles nothing, because that takes longer than the loops themselves."""
    return Generator(make_cached(lm.model, lm.evaluation), jit_compile=False)


def draw(generator, count=N_NEW, **options):
    (ids,) = Session(generator, WORDS, [np.array([1, 3])], **options).draw(count)
    return ids.tolist()


def test_a_rule_draws_what_it_says(generator):
    everything = draw(generator, temperature=9.0, top_k=None)
    likeliest = draw(generator, temperature=0.0)
    assert draw(generator, sampler=MinP(0.0, 9.0)) == everything != likeliest
    assert draw(generator, sampler=MinP(1.0, 9.0)) == likeliest
    assert draw(generator, sampler=MinP(0.5, 9.0)) not in (everything, likeliest)


def test_other_numbers_need_no_compilation(lm):
    draw_one = functools.partial(lm.generate, np.array([1]), max_new_tokens=1)
    draw_one(sampler=MinP(0.0))
    before = MinP.n_traces
    bias = [0.0] * N_TOKEN
    bias[3] = 99.0
    assert draw_one(sampler=MinP(0.3, 2.0, bias)).tolist() == [3]
    assert MinP.n_traces == before


def test_other_constants_are_other_rules(generator):
    for takes_last, expected in ((True, [5, 4, 2]), (False, [0, 2, 4])):
        assert draw(generator, 3, sampler=Newest(takes_last), banned=["a"]) == expected


def test_a_rule_knows_what_a_text_contains_after_its_stop(generator):
    session = Session(generator, WORDS, [np.array([1])], sampler=Newest(True), stops=["on"])
    assert session.draw(5)[0].tolist() == [6, 5, 4]
    assert session.draw(2)[0].tolist() == [3, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": MinP}, "`sampler` must be a Sampler. Received: <class .*MinP"),
        ({"sampler": MinP(0.1), "top_p": 0.9}, "`top_p` has no effect with `sampler`"),
        ({"tempreture": 1}, "options must be among seed, temperature, .* Received: tempreture"),
    ],
)
def test_wrong_options_are_refused(lm, options, message):
    for call in (lm.generate, lm.stream, lm.start):
        with pytest.raises(UserError, match=message):
            call("the", **options)


def test_all_options_can_be_given_by_name():
    """`SamplingOptions` lists what `Session` takes."""
    names = [*Session.__init__.__kwdefaults__, *StandardSampler.__init__.__annotations__]
    assert set(SamplingOptions.__annotations__) == set(names)
