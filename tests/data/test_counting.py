from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_tf.data.text.learning import count_symbols

FUZZ = settings(max_examples=15, deadline=None, derandomize=True)
WORDS = ["a", "b", "the", "é", "文字", "\n", "\t", "\u3000"]


def make_texts(n_texts, n_words, seed):
    """Makes texts in which ever more words are new, as in a language."""
    generator = np.random.default_rng(seed)
    texts = []
    for n_seen in range(1, n_texts + 1):
        numbers = generator.zipf(1.3, n_words) % (7 * n_seen)
        texts.append(" ".join(f"w{number}" for number in numbers).encode() + b"\n")
    return texts


def count_slowly(level, texts):
    """Counts in Python; a Counter keeps the order of first appearance."""
    if level == "byte":
        return Counter(str(byte) for text in texts for byte in text)
    if level == "char":
        return Counter("".join(text.decode() for text in texts))
    return Counter(word for text in texts for word in text.decode().split())


@pytest.mark.parametrize("n_threads", [1, 5])
@pytest.mark.parametrize("level", ["byte", "char", "word"])
def test_counts_are_those_of_python_in_order_of_first_appearance(level, n_threads):
    texts = make_texts(n_texts=31, n_words=97, seed=3)
    counts = count_symbols(level, texts, n_threads=n_threads)
    assert list(counts.items()) == list(count_slowly(level, texts).items())


@FUZZ
@given(words=st.lists(st.sampled_from(WORDS), max_size=41), size=st.integers(1, 13))
def test_word_counts_do_not_depend_on_where_texts_are_cut(words, size):
    pieces = [" ".join(words[i : i + size]).encode() for i in range(0, len(words), size)]
    assert count_symbols("word", pieces) == dict(count_slowly("word", pieces))
    assert list(count_symbols("word", pieces)) == list(dict.fromkeys(" ".join(words).split()))


@FUZZ
@given(text=st.text(max_size=41), place=st.integers(0, 41), n_threads=st.sampled_from([1, 3]))
def test_character_counts_are_those_of_python(text, place, n_threads):
    texts = [text[:place].encode(), text[place:].encode()]
    counts = count_symbols("char", texts, n_threads=n_threads)
    assert list(counts.items()) == list(Counter(text).items())


@FUZZ
@given(texts=st.lists(st.binary(max_size=29), max_size=7))
def test_byte_counts_are_those_of_python(texts):
    counts = count_symbols("byte", texts)
    assert list(counts.items()) == list(count_slowly("byte", texts).items())


@pytest.mark.parametrize("level", ["byte", "char", "word"])
@pytest.mark.parametrize("texts", [[], [b"", b""]])
def test_empty_texts_hold_no_symbols(level, texts):
    assert count_symbols(level, texts) == {}
