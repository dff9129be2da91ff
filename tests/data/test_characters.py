from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_tf.data.text.characters import CharacterCodec
from txl_tf.data.text.vocabulary import Vocabulary

FUZZ = settings(max_examples=61, deadline=None, derandomize=True)
BYTES = Vocabulary.learn("byte", [b"abracadabra", bytes(range(256))])
# All that Python takes for a character, lone surrogates too.
ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()), max_size=41)


@FUZZ
@given(text=st.binary(max_size=61))
def test_any_bytes_come_back(text):
    ids = BYTES.encode(text)
    assert ids.dtype == np.int32
    assert BYTES.decode_bytes(ids) == text


@FUZZ
@given(text=ANY_TEXT)
def test_any_characters_come_back(text):
    vocabulary = Vocabulary.learn("char", [text])
    ids = vocabulary.encode(text)
    assert ids.dtype == np.int32
    assert vocabulary.decode(ids) == text


@FUZZ
@given(text=ANY_TEXT.filter(lambda text: "_" not in text))
def test_any_characters_come_back_with_a_symbol_for_the_space(text):
    vocabulary = Vocabulary.learn("char", [text], space="_")
    assert " " not in vocabulary.symbols
    assert vocabulary.decode(vocabulary.encode(text)) == text


@FUZZ
@given(known=st.text(alphabet="aé🜁\n", max_size=7), text=st.text(alphabet="aéß🜁🜂\n", max_size=23))
def test_unknown_characters_are_minus_one_and_counted(known, text):
    symbols = list(dict.fromkeys(known))
    encoded = Vocabulary("char", tuple(symbols)).codec.encode(text.encode())
    ids = [symbols.index(symbol) if symbol in symbols else -1 for symbol in text]
    assert encoded.ids.tolist() == ids
    assert encoded.unknown == Counter(symbol for symbol in text if symbol not in symbols)


@FUZZ
@given(text=st.text(alphabet="a é🜁文\n", max_size=23), data=st.data())
def test_positions_are_the_characters_before(text, data):
    places = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    offsets = np.array([len(text[:place].encode()) for place in places], np.int64)
    codec = Vocabulary.learn("char", ["a é🜁文\n"]).codec
    assert codec.encode(text.encode(), offsets).positions.tolist() == places


@pytest.mark.parametrize("code", [3, 7, 0x10FFFF])
def test_codes_above_and_between_the_known_ones_are_unknown(code):
    encoded = CharacterCodec([0, 5, 2, 6], is_bytes=False).encode(f"\5{chr(code)}\6".encode())
    np.testing.assert_array_equal(encoded.ids, [1, -1, 3])
