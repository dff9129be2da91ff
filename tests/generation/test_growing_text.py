"""Texts that grow: their tokens, what the memory holds of them, and their speed."""

import functools
import re

import numpy as np
import pytest
from small_language_model import WORDS, make_model
from tables import slow_after

from txl_tf.apps.pages.growing_text import GrowingText
from txl_tf.data import Vocabulary

BYTES = Vocabulary("byte", tuple(map(str, range(256))))
CHARS = Vocabulary("char", tuple("abcdefghijklm_"), space="_")
MEM_LEN, MAX_TOKENS = 11, 89
PROMPTS = {"byte": "Là", "char": "a cab", "word": "the cat sat on a mat"}


@functools.cache
def make_lm(vocabulary):
    return make_model(len(vocabulary), vocabulary=vocabulary, mem_len=MEM_LEN)


def make_text(vocabulary, **settings):
    lm, prompt = make_lm(vocabulary), PROMPTS[vocabulary.level]
    return lm, GrowingText(lm, prompt, max_tokens=MAX_TOKENS, **settings)


def grow(text, length):
    return sum(text.draw(length))


@pytest.mark.parametrize(
    "vocabulary", slow_after(1, [BYTES, WORDS, CHARS]), ids=lambda vocabulary: vocabulary.level
)
def test_a_text_grows_as_generate_continues_it(vocabulary):
    settings = {"seed": 3, "temperature": 0.7, "top_k": 5}
    lm, text = make_text(vocabulary, **settings)
    prompt = PROMPTS[vocabulary.level]
    assert [grow(text, 37), grow(text, 41)] == [37, 41]
    expected = prompt + lm.generate(prompt, max_new_tokens=78, **settings)
    assert "".join(part.text for part in text.cut(1000)) == expected


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
    assert text.cut(1000) == [(prompt, True, True)]
    grow(text, 3)
    whole = CHARS.decode(text.ids)
    assert text.cut(1000) == [(prompt, True, True), (whole[5:], False, True)]
    grow(text, 4)  # 12 tokens: the memory begins within the prompt
    whole = CHARS.decode(text.ids)
    assert text.cut(1000) == [
        ("a", True, False),
        (whole[1:5], True, True),
        (whole[5:], False, True),
    ]
    grow(text, 7)  # 19 tokens
    whole = CHARS.decode(text.ids)
    expected = [(prompt, True, False), (whole[5:8], False, False), (whole[8:], False, True)]
    assert text.cut(1000) == expected
    assert text.cut(13) == [(whole[6:8], False, False), (whole[8:], False, True)]
    assert text.cut(2) == [(whole[17:], False, True)]


def test_words_and_cut_characters_are_shown_once():
    _, text = make_text(WORDS)
    grow(text, 13)
    assert "".join(part.text for part in text.cut(1000)) == WORDS.decode(text.ids)
    prompt = "ééééééé"  # 14 bytes: the memory begins within a character
    text = GrowingText(make_lm(BYTES), prompt, max_tokens=MAX_TOKENS)
    assert text.cut(1000) == [("é", True, False), ("éééééé", True, True)]


def test_speeds_leave_the_first_call_out(monkeypatch):
    clock = iter(np.cumsum([0, 64, 0, 1, 0, 2]).tolist())
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    _, text = make_text(CHARS)
    calls = text.draw(80)
    next(calls)
    assert text.speeds is None
    next(calls)
    assert text.speeds == (32, 32)
    next(calls)
    assert text.speeds == (1 / np.median([1 / 32, 2 / 16]),) * 2


@pytest.mark.parametrize(
    ("prompt", "length", "message"),
    [
        ("", 3, "`prompt` must hold at least one token. Received: an empty text"),
        ("ab" * 45, 3, "the text must have at most 89 tokens. Received: 90 tokens"),
        ("ab", 90, "`length` must be from 1 to 89. Received: 90"),
    ],
)
def test_what_cannot_be_continued_is_refused(prompt, length, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        GrowingText(make_lm(CHARS), prompt, max_tokens=MAX_TOKENS).draw(length)
