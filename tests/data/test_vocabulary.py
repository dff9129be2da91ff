import subprocess
import sys

import numpy as np
import pytest

from txl_tf.data.vocabulary import Vocabulary

BYTES = Vocabulary.learn("byte", [b"abracadabra"], every_byte=True)


@pytest.mark.parametrize(
    ("vocabulary", "text"),
    [
        (BYTES, "naïve 文字\n\r\x00"),
        (Vocabulary.learn("char", ["naïve 文字 🜁\n"]), "文字🜁\nnaïve "),
        (Vocabulary.learn("char", ["see es"], space="_"), " se  e"),
        (Vocabulary.learn("word", ["the cat the hat"]), "hat the cat"),
    ],
)
def test_decode_undoes_encode(vocabulary, text):
    ids = vocabulary.encode(text)
    assert ids.dtype == np.int32
    assert vocabulary.decode(ids) == text


def test_decode_bytes_undoes_encode_of_any_bytes():
    raw = bytes(range(256)) * 3
    assert BYTES.decode_bytes(BYTES.encode(raw)) == raw


def test_decode_replaces_bytes_that_are_no_utf8():
    assert BYTES.decode(BYTES.encode(b"a\xff")) == "a\ufffd"


def test_encode_takes_bytes_as_utf8():
    vocabulary = Vocabulary.learn("char", ["é"])
    np.testing.assert_array_equal(vocabulary.encode("é".encode()), [0])


@pytest.mark.parametrize("level", ["byte", "char", "word"])
def test_an_empty_text_has_no_ids(level):
    vocabulary = Vocabulary.learn(level, ["a"])
    assert vocabulary.encode("").shape == (0,)
    assert vocabulary.decode([]) == ""


def test_symbols_fall_by_count():
    assert Vocabulary.learn("char", ["abcbcc"]).symbols == ("c", "b", "a")


def test_equal_counts_keep_first_appearance_over_all_texts():
    assert Vocabulary.learn("char", ["zy", "xzyx", "w"]).symbols == ("z", "y", "x", "w")


def test_byte_symbols_are_decimal_numbers():
    assert Vocabulary.learn("byte", ["\n\n "]).symbols == ("10", "32")


def test_every_byte_adds_the_unseen_ones_last_and_in_order():
    symbols = Vocabulary.learn("byte", [b"\x02\x02\x01"], every_byte=True).symbols
    assert symbols[:4] == ("2", "1", "0", "3")
    assert symbols[4:] == tuple(str(byte) for byte in range(4, 256))


def test_every_byte_needs_bytes():
    with pytest.raises(ValueError, match=r"`every_byte` needs level='byte'\. Received: .*'char'"):
        Vocabulary.learn("char", ["a"], every_byte=True)


def test_the_space_symbol_must_not_occur_in_the_texts():
    with pytest.raises(ValueError, match=r"`space` must not occur in `texts`.*'_'"):
        Vocabulary.learn("char", ["a_b c"], space="_")


@pytest.mark.parametrize(
    ("vocabulary", "text", "received"),
    [
        (Vocabulary.learn("byte", ["ab"]), b"ab\xc5a", r"byte 197 at offset 2"),
        (Vocabulary.learn("byte", ["ab"]), "a c", r"byte 32 at offset 1"),
        (Vocabulary.learn("char", ["ab"]), "ab🜁", r"character '🜁' at offset 2"),
        (Vocabulary.learn("char", ["ab"]), "abÅ", r"character 'Å' at offset 2"),
        (Vocabulary.learn("char", ["a b"], space="_"), "a_b", r"character '_' at offset 1"),
        (Vocabulary.learn("word", ["the cat"]), "cat  the hat", r"word 'hat' at offset 2"),
    ],
)
def test_encode_names_the_unknown_symbol_and_its_offset(vocabulary, text, received):
    with pytest.raises(ValueError, match=received):
        vocabulary.encode(text)


@pytest.mark.parametrize("wrong", [-1, 3])
@pytest.mark.parametrize("level", ["char", "word"])
def test_decode_names_the_id_out_of_range(level, wrong):
    vocabulary = Vocabulary(level, ("a", "b", "c"))
    with pytest.raises(ValueError, match=rf"below 3\. Received: id {wrong} at offset 1"):
        vocabulary.decode([0, wrong])


@pytest.mark.parametrize("ids", [[[0, 1]], [0.5]])
def test_decode_needs_a_row_of_integers(ids):
    with pytest.raises(ValueError, match="`ids` must be a row of integers"):
        BYTES.decode(ids)


def test_decode_bytes_needs_bytes():
    with pytest.raises(ValueError, match="`decode_bytes` needs level='byte'"):
        Vocabulary("char", ("a",)).decode_bytes([0])


@pytest.mark.parametrize(
    ("level", "symbols", "message"),
    [
        ("byte", ("1", "256"), "decimal number of a byte. Received: '256' as symbol 1"),
        ("byte", ("01",), "decimal number of a byte. Received: '01'"),
        ("byte", ("a",), "decimal number of a byte. Received: 'a'"),
        ("char", ("a", ""), "one character. Received: '' as symbol 1"),
        ("char", ("ab",), "one character. Received: 'ab'"),
        ("word", ("a b",), "without white space. Received: 'a b'"),
        ("word", ("a", "b", "a"), "must all differ. Received twice: 'a'"),
        ("letter", ("a",), "`level` must be one of .* Received: level='letter'"),
    ],
)
def test_symbols_must_be_of_their_level(level, symbols, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary(level, symbols)


@pytest.mark.parametrize(
    ("level", "symbols", "message"),
    [
        ("char", ("a", "b"), "`space` must be one of the symbols"),
        ("word", ("_",), "`space` must be one of the symbols of a vocabulary of characters"),
        ("char", ("_", " "), "must not hold ' ' where `space` stands for it"),
    ],
)
def test_space_must_be_a_symbol_that_stands_for_the_space(level, symbols, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary(level, symbols, space="_")


def test_texts_without_a_space_need_no_symbol_for_it():
    assert Vocabulary.learn("char", ["abb"], space="_") == Vocabulary("char", ("b", "a"))


def test_json_gives_the_same_vocabulary():
    vocabulary = Vocabulary.learn("char", ["see es"], space="_")
    assert Vocabulary.from_json(vocabulary.to_json()) == vocabulary


@pytest.mark.parametrize("change", [{"colour": "red"}, {"space": ...}])
def test_json_with_other_keys_is_refused(change):
    data = {**BYTES.to_json(), **change}
    data = {key: value for key, value in data.items() if value is not ...}
    with pytest.raises(ValueError, match=r"must have the keys \['level', 'space', 'symbols'\]"):
        Vocabulary.from_json(data)


def test_importing_the_data_package_imports_no_tensorflow():
    code = (
        "import sys, txl_tf.data; sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
