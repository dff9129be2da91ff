import json

import numpy as np
import pytest

from txl_tf.data.vocabulary import Vocabulary
from txl_tf.errors import UserError

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


@pytest.mark.parametrize(
    ("vocabulary", "text"),
    [
        (Vocabulary.learn("char", ["é_🜁 "]), "🜁_ é"),
        (Vocabulary.learn("char", ["é 🜁"], space="_"), "🜁 é"),
        (Vocabulary.learn("word", ["naïve 🜁\n"], line_end="</s>"), "🜁 naïve\nnaïve"),
    ],
)
def test_decode_bytes_gives_utf8_at_the_other_levels(vocabulary, text):
    assert vocabulary.decode_bytes(vocabulary.encode(text)) == text.encode()


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
        (Vocabulary.learn("byte", ["ab"]), b"ab\xc5a", r"bytes.* 1 unknown \('197'\), .* 2$"),
        (Vocabulary.learn("byte", ["ab"]), "a c", r"bytes.* 2 unknown \('32', '99'\), .* 1$"),
        (Vocabulary.learn("char", ["ab"]), "ab🜁", r"chars.* 1 unknown \('🜁'\), .* 2$"),
        (Vocabulary.learn("char", ["ab"]), "abÅÅ", r"chars.* 2 unknown \('Å'\), .* 2$"),
        (Vocabulary.learn("char", ["a b"], space="_"), "a_b", r"chars.* 1 unknown \('_'\), .* 1$"),
        (
            Vocabulary.learn("word", ["the cat"]),
            "cat  the hat sat on the hat",
            r"words.* 4 unknown \('hat', 'sat', 'on'\), .* 2$",
        ),
    ],
)
def test_encode_names_unknown_symbols_and_the_offset_of_the_first(vocabulary, text, received):
    pattern = rf"`text` must hold known symbols only \({len(vocabulary)} {received}"
    with pytest.raises(UserError, match=pattern):
        vocabulary.encode(text)


@pytest.mark.parametrize(
    ("level", "texts", "unknown", "text", "ids"),
    [
        ("char", ["aab?"], "?", "b🜁a c", [1, 2, 0, 2, 2]),
        ("word", ["the the cat <unk>"], "<unk>", "cat hat  the", [1, 2, 0]),
    ],
)
def test_unknown_symbols_become_the_one_for_them(level, texts, unknown, text, ids):
    vocabulary = Vocabulary.learn(level, texts, unknown=unknown)
    np.testing.assert_array_equal(vocabulary.encode(text), ids)


@pytest.mark.parametrize("level", ["char", "word"])
def test_encode_refuses_bytes_that_are_no_utf8(level):
    with pytest.raises(UnicodeDecodeError, match="can't decode byte 0xff in position 1"):
        Vocabulary.learn(level, ["a"]).encode(b"a\xff")


def test_tensorflow_takes_no_lone_surrogate():
    with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
        Vocabulary.learn("word", ["a"]).encode("a \ud800")


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


@pytest.mark.parametrize("level", ["byte", "char", "word"])
def test_decode_bytes_names_the_id_out_of_range(level):
    with pytest.raises(ValueError, match=r"below 2\. Received: id 2 at offset 1"):
        Vocabulary(level, ("1", "2")).decode_bytes([0, 2])


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
    with pytest.raises(UserError, match=message):
        Vocabulary(level, symbols)


@pytest.mark.parametrize(
    ("level", "symbols", "message"),
    [
        ("char", ("a", "b"), "`space` must be one of the symbols"),
        ("word", ("_",), r"`space` needs level 'char'\. Received: space='_', level='word'"),
        ("char", ("_", " "), "must not contain ' ' if `space` stands for it"),
    ],
)
def test_space_must_be_a_symbol_that_stands_for_the_space(level, symbols, message):
    with pytest.raises(UserError, match=message):
        Vocabulary(level, symbols, space="_")


@pytest.mark.parametrize(
    ("level", "name", "levels"),
    [
        ("byte", "unknown", "'char' or 'word'"),
        ("char", "lower_case", "'word' or 'subword'"),
        ("char", "line_start", "'word'"),
        ("byte", "line_end", "'word'"),
        ("word", "sentencepiece", "'subword'"),
    ],
)
def test_an_argument_of_another_level_is_refused(level, name, levels):
    pattern = rf"`{name}` needs level {levels}\. Received: {name}='1', level='{level}'"
    with pytest.raises(UserError, match=pattern):
        Vocabulary(level, ("1",), **{name: "1"})


@pytest.mark.parametrize("name", ["unknown", "line_start", "line_end"])
def test_a_symbol_with_a_meaning_must_be_one_of_the_symbols(name):
    with pytest.raises(UserError, match=f"`{name}` must be one of the symbols. Received: {name}="):
        Vocabulary("word", ("a", "b"), **{name: "c"})


def test_texts_without_a_space_need_no_symbol_for_it():
    assert Vocabulary.learn("char", ["abb"], space="_") == Vocabulary("char", ("b", "a"))


def test_json_gives_the_same_vocabulary():
    options = {"unknown": "a", "lower_case": True, "line_start": "b", "line_end": "c"}
    for vocabulary in (
        Vocabulary.learn("char", ["see es"], space="_", unknown="s"),
        Vocabulary("word", ("a", "b", "c"), **options),
    ):
        data = json.loads(json.dumps(vocabulary.to_json()))
        assert Vocabulary.from_json(data) == vocabulary


def test_json_needs_level_and_symbols_alone():
    data = {"level": "word", "symbols": ["a", "b"]}
    assert Vocabulary.from_json(data) == Vocabulary("word", ("a", "b"))


@pytest.mark.parametrize("change", [{"colour": "red"}, {"symbols": ...}, {"level": ...}])
def test_json_with_other_keys_is_refused(change):
    data = {**BYTES.to_json(), **change}
    data = {key: value for key, value in data.items() if value is not ...}
    with pytest.raises(ValueError, match=r"must have the keys .*, and only keys of \['"):
        Vocabulary.from_json(data)
