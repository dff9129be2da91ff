import numpy as np
import pytest
import tensorflow as tf
from small_language_model import make_transformer

from txl_tf.config import AttentionSpan, EvalConfig
from txl_tf.data import Vocabulary
from txl_tf.errors import UserError
from txl_tf.scoring.continuations import Continuation, ContinuationScorer, encode_continuation

WORDS = Vocabulary("word", ("<S>", "the", "cat", "sat", "ab", "cd", "<unk>"), unknown="<unk>")


@pytest.fixture(scope="module")
def model():
    return make_transformer()


def make_scorer(model, batch_size=3):
    config = EvalConfig(tgt_len=5, mem_len=37, same_length=True)
    return ContinuationScorer(model, config, batch_size)


def read_log_probs(model, ids):
    """Returns log p after each id, read at once without memory."""
    hidden, _ = model(tf.constant(ids[None]), model.initial_memory(1, 0), span=AttentionSpan(0))
    return model.log_probs(hidden)[0].numpy()


def test_scores_are_those_of_one_pass_whatever_the_batch(model):
    rng = np.random.default_rng(0)
    sizes = [(1, 1), (4, 3), (5, 11), (17, 2), (3, 0)]
    continuations = [
        Continuation(*(rng.integers(0, 13, n).astype(np.int32) for n in size)) for size in sizes
    ]
    for batch_size in (1, 3):
        found = make_scorer(model, batch_size).score(continuations)
        for (context, ids), score in zip(continuations, found, strict=True):
            log_probs = read_log_probs(model, np.concatenate([context, ids]))[len(context) - 1 : -1]
            expected = log_probs[np.arange(len(ids)), ids].sum()
            assert score.log_prob == pytest.approx(expected, abs=1e-4)
            assert score.is_greedy == (log_probs.argmax(-1) == ids).all()


def test_the_likeliest_continuation_is_greedy_and_no_other(model):
    context, ids = np.array([3, 1], np.int32), []
    for _ in range(7):
        log_probs = read_log_probs(model, np.concatenate([context, ids]).astype(np.int32))
        ids.append(log_probs[-1].argmax())
    greedy = np.array(ids, np.int32)
    other = np.array([*ids[:-1], (ids[-1] + 1) % 13], np.int32)
    scores = make_scorer(model).score([Continuation(context, greedy), Continuation(context, other)])
    assert [score.is_greedy for score in scores] == [True, False]


def encode(vocabulary, context, continuation, prefix="the"):
    found = encode_continuation(vocabulary, context, continuation, prefix)
    return [[vocabulary.symbols[i] for i in ids] for ids in found]


def test_words_split_at_the_boundary():
    assert encode(WORDS, "the cat", " sat") == [["the", "cat"], ["sat"]]
    assert encode(WORDS, "the ab", "cd the") == [["the", "ab"], ["cd", "the"]]
    assert encode(WORDS, "", "cat") == [["the"], ["cat"]]


def test_a_line_begins_only_behind_a_line_break():
    lines = Vocabulary("word", WORDS.symbols, unknown="<unk>", line_start="<S>")
    assert encode(lines, "the", " cat") == [["<S>", "the"], ["cat"]]
    assert encode(lines, "the\n", "cat") == [["<S>", "the"], ["<S>", "cat"]]


def test_no_context_and_no_prefix_is_refused():
    with pytest.raises(UserError, match=r"`prefix` must hold a token .* Received: prefix=''"):
        encode(WORDS, " ", "cat", prefix="")


def test_a_batch_of_nothing_is_refused(model):
    with pytest.raises(UserError, match=r"`batch_size` must be an integer >= 1. .*=0"):
        make_scorer(model, 0)
