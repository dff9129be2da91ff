"""Texts that grow: their tokens, what the memory holds of them, and their speed."""

import functools

import numpy as np
import pytest
from small_language_model import WORDS, make_model
from tables import slow_after

from txl_tf.apps.pages.model_views import GrowingText
from txl_tf.data import Vocabulary

BYTES = Vocabulary("byte", tuple(map(str, range(256))))
CHARS = Vocabulary("char", tuple("abcdefghijklm_"), space="_")
MEM_LEN = 11
PROMPTS = {"byte": "Là", "char": "a cab", "word": "the cat sat on a mat"}


@functools.cache
def make_lm(vocabulary):
    return make_model(len(vocabulary), vocabulary=vocabulary, mem_len=MEM_LEN)


def make_text(vocabulary, prompt=None, **settings):
    lm = make_lm(vocabulary)
    ids = vocabulary.encode(prompt or PROMPTS[vocabulary.level])
    return lm, GrowingText(ids, lm.start([ids], **settings), MEM_LEN)


def grow(text, length):
    """Adds tokens, and returns the number of tokens of the text after each call."""
    return list(text.draw(length))


@pytest.mark.parametrize(
    "vocabulary", slow_after(1, [BYTES, WORDS, CHARS]), ids=lambda vocabulary: vocabulary.level
)
def test_a_text_grows_as_generate_continues_it(vocabulary):
    settings = {"seed": 3, "temperature": 0.7, "top_k": 5}
    lm, text = make_text(vocabulary, **settings)
    prompt = PROMPTS[vocabulary.level]
    n = len(text.ids)
    assert [grow(text, 37), grow(text, 41)] == [[n + 32, n + 37], [n + 69, n + 78]]
    expected = prompt + lm.generate(prompt, max_new_tokens=78, **settings)
    assert "".join(part for _, part in text.split(vocabulary, 1000)) == expected


def test_the_memory_holds_the_last_tokens():
    _, text = make_text(CHARS)
    seen = []
    for length in (2, 3, 5):
        grow(text, length)
        seen.append((len(text.ids), text.n_in_memory))
    assert seen == [(7, 7), (10, 10), (15, MEM_LEN)]


def test_a_text_is_cut_at_its_prompt_and_its_memory():
    _, text = make_text(CHARS)
    prompt = PROMPTS["char"]
    split = functools.partial(text.split, CHARS)
    assert split(1000) == [("memory prompt", prompt)]
    grow(text, 3)
    whole = CHARS.decode(text.ids)
    assert split(1000) == [("memory prompt", prompt), ("memory", whole[5:])]
    grow(text, 4)  # 12 tokens: the memory begins within the prompt
    whole = CHARS.decode(text.ids)
    cut = [("old prompt", "a"), ("memory prompt", whole[1:5]), ("memory", whole[5:])]
    assert split(1000) == cut
    grow(text, 7)  # 19 tokens
    whole = CHARS.decode(text.ids)
    assert split(1000) == [("old prompt", prompt), ("old", whole[5:8]), ("memory", whole[8:])]
    assert split(13) == [("old", whole[6:8]), ("memory", whole[8:])]
    assert split(2) == [("memory", whole[17:])]


def test_words_and_cut_characters_are_shown_once():
    _, text = make_text(WORDS)
    grow(text, 13)
    assert "".join(part for _, part in text.split(WORDS, 1000)) == WORDS.decode(text.ids)
    _, text = make_text(BYTES, "ééééééé")  # 14 bytes: the memory begins within a character
    assert text.split(BYTES, 1000) == [("old prompt", "é"), ("memory prompt", "éééééé")]


def test_speeds_leave_the_first_call_out(monkeypatch):
    clock = iter(np.cumsum([0, 64, 0, 1, 0, 2, 0]).tolist())
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    _, text = make_text(CHARS)
    calls = text.draw(80)
    next(calls)
    assert text.speeds is None
    next(calls)
    assert text.speeds == (32, 32)
    next(calls)
    assert text.speeds == (1 / np.median([1 / 32, 2 / 16]),) * 2
