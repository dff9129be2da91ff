import dataclasses
import functools
import math

import numpy as np
import pytest
import tensorflow as tf
from small_language_model import SPANS, WORDS, make_transformer
from tables import slow_after

from txl_tf.config import AttentionSpan, EvalConfig
from txl_tf.data import Vocabulary
from txl_tf.errors import UserError
from txl_tf.language_model import LanguageModel
from txl_tf.models.cached_model import CachedModel
from txl_tf.scoring import segment_loop
from txl_tf.scoring.scorer import Scorer
from txl_tf.scoring.segment_loop import FrozenReader
from txl_tf.scoring.text_chunks import TextChunk, TextName, split_texts

# Two ways to sum in float32, on a model with weights nine times as large as usual.
SAME = {"rtol": 0, "atol": 1e-5}
LENGTHS = (0, 1, 2, 23, 5, 6, 7, 47, 11, 3, 1, 0, 5)


def make_texts(lengths=LENGTHS, n_token=13):
    rng = np.random.default_rng(3)
    return [rng.integers(0, n_token, length, np.int32) for length in lengths]


@functools.cache  # with its compiled steps
def make_scorer(span=SPANS[4], tgt_len=5, *, jit="none", **options):
    config = EvalConfig(tgt_len, **dataclasses.asdict(span))
    return Scorer(make_transformer(), config, jit=jit, **options)


def make_stream(parts):
    """Yields a text that comes in parts of ids, as a stream of its own."""
    for index, ids in enumerate(parts):
        yield TextChunk(ids, None, None, (0, 0), None if index else TextName("", 1))


@functools.cache
def make_lm(vocabulary=None, n_token=13):
    return LanguageModel(make_transformer(n_token), vocabulary, EvalConfig(tgt_len=5, mem_len=11))


def score_all(scorer, texts, **options):
    """Returns the losses of each text."""
    return [score.nats for _, score in scorer.score([make_stream([t]) for t in texts], **options)]


def read_in_one_row(span, text, tgt_len, *, is_masked):
    """Returns the losses of a text, segment by segment, from the model itself."""
    cached = CachedModel(make_transformer(), span, tgt_len, mask_empty_memory=is_masked)
    state, nats = cached.initial_state(1), []
    for start in range(0, len(text) - 1, tgt_len):
        segment = text[None, start : start + tgt_len + 1]
        hidden, state = cached.read(segment[:, :-1], state)
        nats.append(cached.model.nll(hidden, segment[:, 1:]).numpy()[0])
    return np.concatenate(nats) if nats else np.zeros(0)


@pytest.mark.parametrize(
    ("span", "is_masked"), slow_after(1, [(SPANS[3], False), (SPANS[4], True)]), ids=str
)
def test_other_texts_of_a_batch_change_no_score(span, is_masked):
    texts = make_texts()
    found = score_all(make_scorer(span, batch_size=4, mask_empty_memory=is_masked), texts)
    for text, nats in zip(texts, found, strict=True):
        expected = read_in_one_row(span, text, 5, is_masked=is_masked)
        np.testing.assert_allclose(nats, expected, **SAME)


@pytest.mark.parametrize("span", slow_after(1, [SPANS[4], SPANS[1]]), ids=str)
def test_texts_no_longer_than_the_memory_are_read_at_once(span):
    scorer = make_scorer(span, tgt_len=3, batch_size=2)
    texts = make_texts((6, 5, span.mem_len, span.mem_len + 1))
    found = score_all(scorer, texts)
    for text, nats in zip(texts, found, strict=True):
        expected = read_in_one_row(span, text, 3, is_masked=True)
        np.testing.assert_allclose(nats, expected, **SAME)
    lengths = {shape[1] for uses_memory, shape, *_ in scorer.reader.functions if not uses_memory}
    assert lengths == ({3} if span.mem_len < 6 else {6})


@pytest.mark.parametrize(
    ("batch_size", "jit"), slow_after(1, [(23, "none"), (1, "chains"), (3, "whole")])
)
def test_the_batch_size_does_not_change_a_score(batch_size, jit):
    texts = make_texts()
    expected = score_all(make_scorer(), texts)
    found = score_all(make_scorer(batch_size=batch_size, jit=jit), texts)
    for nats, others in zip(found, expected, strict=True):
        np.testing.assert_allclose(nats, others, **SAME)


@pytest.fixture
def traced(monkeypatch):
    """An entry for each step that readers would trace and compile; nothing is computed."""
    steps = []

    def compile_nothing(reader, cached, tensors):
        steps.append(tensors)
        return lambda ids, targets, state, *_: (tf.zeros(ids.shape), state)

    monkeypatch.setattr(FrozenReader, "_compile", compile_nothing)
    return steps


def test_texts_of_200_lengths_need_few_steps(traced):
    config = EvalConfig(tgt_len=64, mem_len=96, same_length=True)
    scorer = Scorer(make_transformer(), config, jit="none")
    texts = make_texts(range(2, 202))
    score_all(scorer, texts)
    assert len(traced) < 5
    for text in texts[::3]:
        score_all(scorer, [text])
    assert len(traced) < 9


def test_the_steps_of_many_settings_are_forgotten(traced, monkeypatch):
    monkeypatch.setattr(segment_loop, "MOST_STEPS", 3)
    lm = LanguageModel(make_transformer(), None, EvalConfig(tgt_len=11, mem_len=11))
    texts = make_texts()
    for batch_size in range(1, 18):
        lm.score(texts, batch_size=batch_size)
    scorers = vars(lm)["_scorers"].values()
    assert len(scorers) == 8
    assert max(len(scorer.reader.functions) for scorer in scorers) == 3
    n_before = len(traced)
    lm.score(texts[:3], batch_size=17)  # the last one is still there
    lm.score(texts[:3], batch_size=17)
    assert len(traced) <= n_before + 1


def test_a_shorter_segment_for_short_texts_does_not_change_a_score():
    """Alone they are read in 16 places, beside a long text in 37."""
    short, long = make_texts((7, 2, 5)), make_texts((97,))
    alone = score_all(make_scorer(SPANS[3], 37), short)
    beside = score_all(make_scorer(SPANS[3], 37), short + long)
    for nats, others in zip(alone, beside, strict=False):
        np.testing.assert_allclose(nats, others, **SAME)


@pytest.mark.parametrize("tgt_len", [1, 22])
def test_the_segments_of_a_text_are_one_pass(tgt_len):
    """With `same_length` each token sees M + 1 states, however the text is cut."""
    span = AttentionSpan(29, same_length=True)
    (text,) = make_texts((97,))
    (nats,) = score_all(make_scorer(span, tgt_len), [text])
    np.testing.assert_allclose(nats, read_in_one_row(span, text, 96, is_masked=True), **SAME)


def test_a_single_text_is_read_in_longer_segments():
    """M is 66: 11 tokens at a time instead of 5."""
    span = AttentionSpan(66, same_length=True)
    (text,) = make_texts((97,))
    counts = []
    (nats,) = score_all(make_scorer(span), [text], report=counts.append)
    assert counts == [*[11] * 8, 8]
    np.testing.assert_allclose(nats, read_in_one_row(span, text, 5, is_masked=True), **SAME)


def test_the_parts_that_a_text_comes_in_do_not_change_its_score():
    (text,) = make_texts((97,))
    parts = [text[:0], text[:1], text[1:2], text[2:50], text[50:50], text[50:]]
    (whole,) = score_all(make_scorer(), [text])
    ((_, score),) = make_scorer().score([make_stream(parts)])
    np.testing.assert_array_equal(score.nats, whole)
    np.testing.assert_array_equal(score.ids, text)


def test_a_text_without_end_is_taken_as_it_is_read():
    """Two ids more than a segment of 7 tell whether the text goes on; parts are taken whole."""
    taken = done = 0

    def iterate_parts():
        nonlocal taken
        while True:
            taken += 11
            yield np.zeros(11, np.int32)

    class FarEnoughError(Exception):
        pass

    def report(n_tokens):
        nonlocal done
        done += n_tokens
        assert taken - done <= 7 + 2 + 11
        if done > 300:
            raise FarEnoughError

    with pytest.raises(FarEnoughError):
        list(make_scorer(tgt_len=7).score([make_stream(iterate_parts())], report=report))


def test_the_chunks_of_a_file_are_cut_into_its_texts():
    chunks = [chunk for length in (1, 3, 2) for chunk in make_stream(make_texts([5] * length))]
    assert [len(text) for text in split_texts(iter(chunks))] == [1, 3, 2]
    assert list(split_texts([])) == []


def test_scores_come_in_the_order_of_the_texts():
    texts = make_texts((97, 2, 41, 3, 2))
    scores = make_lm().score(texts, batch_size=2, jit="none")
    for score, text in zip(scores, texts, strict=True):
        np.testing.assert_array_equal(score.ids, text)
        assert score.tokens == len(score.nats) == len(text) - 1


@pytest.mark.parametrize("lengths", [LENGTHS, (0, 0), (1, 1, 1)])
def test_texts_that_carry_the_memory_are_one_text(lengths):
    texts, lm = make_texts(lengths), make_lm()
    (whole,) = lm.score([np.concatenate(texts)], jit="none")
    scores = lm.score(texts, carry_memory=True, jit="none")
    np.testing.assert_array_equal(np.concatenate([score.nats for score in scores]), whole.nats)
    for score, text in zip(scores, texts, strict=True):
        np.testing.assert_array_equal(score.ids, text)


def test_after_a_prefix_every_token_is_scored():
    lm = make_lm(WORDS, n_token=7)
    texts = ["the cat sat\n", "", "a", "on the mat a cat sat on the mat\n"]
    alone = lm.score(["\n" + text for text in texts], jit="none")
    scores = lm.score(texts, prefix="\n", jit="none")
    for score, whole, text in zip(scores, alone, texts, strict=True):
        np.testing.assert_array_equal(score.ids, WORDS.encode(text))
        np.testing.assert_allclose(score.nats, whole.nats, **SAME)
        assert score.tokens == len(score.ids)


@pytest.mark.parametrize("length", [5, 23])
def test_a_prefix_of_any_length_is_context_alone(length):
    lm, (prefix, text) = make_lm(), make_texts((length, 7))
    (score,) = lm.score([text], prefix=prefix, jit="none")
    (whole,) = lm.score([np.concatenate([prefix, text])], jit="none")
    np.testing.assert_allclose(score.nats, whole.nats[-7:], **SAME)


def test_bytes_and_words_are_those_of_the_tokens_that_were_scored():
    """At words a token is a word or a line's end; the first word has no context."""
    lm = make_lm(WORDS, n_token=7)
    text = "  the cat\nsat  on\n"
    (skipped,) = lm.score([text], jit="none")
    (full,) = lm.score([text], prefix="\n", jit="none")
    assert (skipped.tokens, skipped.n_words, skipped.n_bytes) == (5, 5, len(text) - 3)
    assert (full.tokens, full.n_words, full.n_bytes) == (6, 6, len(text))
    assert full.bits_per_byte == pytest.approx(full.total_nats / math.log(2) / len(text))
    assert full.word_perplexity == pytest.approx(full.perplexity)


@pytest.mark.parametrize(
    ("text", "n_bytes", "n_words"),
    [("é de", 3, 1), ("éd e", 3, 2), (" d\nee", 4, 2), ("é", 0, 0)],
)
def test_the_first_character_and_a_word_of_it_are_left_out(text, n_bytes, n_words):
    vocabulary = Vocabulary("char", (*"abcd é\n_efgh",))
    (score,) = make_lm(vocabulary, n_token=12).score([text], jit="none")
    assert (score.n_bytes, score.n_words) == (n_bytes, n_words)
    if n_words:
        expected = math.exp(score.total_nats / n_words)
        assert score.word_perplexity == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "the", np.array([3])])
def test_a_text_without_context_has_no_loss(text):
    (score,) = make_lm(WORDS, n_token=7).score([text], jit="none")
    assert (score.tokens, score.total_nats) == (0, 0.0)
    means = [score.nats_per_token, score.bits_per_token, score.perplexity]
    np.testing.assert_array_equal(means, np.nan)
    assert (score.bits_per_byte, score.word_perplexity) == (None, None)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ("the cat", {}, r"`texts` must be a list of texts. Received: one text"),
        ({"the cat": 1}, {}, r"`texts` must be a list. Received: {'the cat': 1}"),
        ({"the cat"}, {}, r"`texts` must be a list. Received: {'the cat'}"),
        (["the", "a dog"], {}, r"1 unknown \('dog'\), the first at offset 1"),
        (["x" * 10**7], {}, r"^.{,200}1 unknown \('xxx.*\.\.\..*xxx'\), the first at offset 0$"),
        ([b"the \xff"], {}, r"a text is not UTF-8: .* byte 0xff in position 4"),
        ([[1, -1]], {}, r"ids must be at least 0 and below 7. Received: id -1 at offset 1"),
        ([[[1]]], {}, r"a text must be a `str` or a one-dimensional array"),
        (["the"], {"prefix": "dog"}, r"1 unknown \('dog'\)"),
        (["the"], {"batch_size": "3"}, "`batch_size` must be an integer >= 1. Received: .*'3'"),
        (["the"], {"batch_size": 0}, r"`batch_size` must be an integer >= 1. .*=0"),
        (["the"], {"prefix": 3}, r"a text must be a `str` or a one-dimensional array"),
        (["the"], {"dynamic": "yes"}, r"`dynamic` must be a DynamicConfig or a bool"),
    ],
    ids=range(13),
)
def test_bad_texts_are_refused(texts, options, message):
    with pytest.raises(UserError, match=message):
        make_lm(WORDS, n_token=7).score(texts, jit="none", **options)


def test_full_memory_is_explained(monkeypatch):
    def fail(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    scorer = make_scorer()
    monkeypatch.setattr(scorer.reader, "read", fail)
    with pytest.raises(UserError, match="too little memory to score the texts: try a smaller"):
        list(scorer.score([make_stream([np.arange(9)])]))
