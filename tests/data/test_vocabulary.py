import json

import numpy as np
import pytest

from txl_tf.data.text.vocabulary import Vocabulary, choose_prefix
from txl_tf.errors import UserError

BYTES = Vocabulary.learn("byte", [b"abracadabra", bytes(range(256))])


@pytest.mark.parametrize(
    ("vocabulary", "text"),
    [
        (Vocabulary.learn("char", ["naïve 文字 🜁\n"]), "文字🜁\nnaïve "),
        (Vocabulary.learn("char", ["é 🜁"], space="_"), "🜁 é"),
        (Vocabulary.learn("word", ["naïve 🜁\n"], line_end="</s>"), "🜁 naïve\nnaïve"),
    ],
)
def test_decode_undoes_encode(vocabulary, text):
    ids = vocabulary.encode(text)
    assert ids.dtype == np.int32
    assert vocabulary.decode(ids) == text
    assert vocabulary.decode_bytes(ids) == text.encode()


def test_decode_replaces_bytes_that_are_no_utf8():
    assert BYTES.decode(BYTES.encode(b"a\xff")) == "a\ufffd"


@pytest.mark.parametrize("level", ["char", "word"])
def test_an_empty_text_has_no_ids(level):
    vocabulary = Vocabulary.learn(level, ["a"])
    assert vocabulary.encode("").shape == (0,)
    assert vocabulary.decode([]) == ""


@pytest.mark.parametrize(
    ("vocabulary", "text", "received"),
    [
        (Vocabulary.learn("byte", ["ab"]), b"ab\xc5a", r"bytes.* 1 unknown \('197'\), .* 2$"),
        (Vocabulary.learn("char", ["a b"], space="_"), "a_b", r"chars.* 1 unknown \('_'\), .* 1$"),
        (
            Vocabulary.learn("word", ["the cat"]),
            "cat  the hat sat on the hat",
            r"words.* 4 unknown \('hat', 'sat', 'on'\), .* 2$",
        ),
    ],
)
def test_encode_names_unknown_symbols_and_the_offset_of_the_first(vocabulary, text, received):
    pattern = rf"only the {len(vocabulary)} {received}"
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


@pytest.mark.parametrize(
    ("level", "symbols", "message"),
    [
        ("byte", ("1", "256"), "decimal number of a byte. Received: '256' as symbol 1"),
        ("char", ("a", ""), "one character. Received: '' as symbol 1"),
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
        ("word", "sentencepiece", "'subword'"),
    ],
)
def test_an_argument_of_another_level_is_refused(level, name, levels):
    pattern = rf"`{name}` needs level {levels}\. Received: {name}='1', level='{level}'"
    with pytest.raises(UserError, match=pattern):
        Vocabulary(level, ("1",), **{name: "1"})


def test_a_symbol_with_a_meaning_must_be_one_of_the_symbols():
    with pytest.raises(UserError, match=r"`unknown` must be one of the symbols\. Received: unk"):
        Vocabulary("word", ("a", "b"), unknown="c")


def test_json_gives_the_same_vocabulary():
    options = {"unknown": "a", "lower_case": True, "line_start": "b", "line_end": "c"}
    for vocabulary in (
        Vocabulary.learn("char", ["see es"], space="_", unknown="s"),
        Vocabulary("word", ("a", "b", "c"), **options),
    ):
        data = json.loads(json.dumps(vocabulary.to_json()))
        assert Vocabulary.from_json(data) == vocabulary


@pytest.mark.parametrize("change", [{"color": "red"}, {"symbols": ...}, {"level": ...}])
def test_json_with_other_keys_is_refused(change):
    data = {**BYTES.to_json(), **change}
    data = {key: value for key, value in data.items() if value is not ...}
    with pytest.raises(ValueError, match=r"must have the keys .*, and only keys of \['"):
        Vocabulary.from_json(data)


def test_the_prefix_is_what_the_vocabulary_has():
    assert choose_prefix(Vocabulary("char", tuple("\n abcdefgh."))) == "\n"
    assert choose_prefix(Vocabulary("char", ("_", "a"), space="_")) == " "
    assert choose_prefix(Vocabulary("word", ("a", "b"))) == ""


def test_symbols_may_be_a_list():
    assert Vocabulary("char", ["a", "b"]) == Vocabulary("char", ("a", "b"))


def test_one_text_is_no_list_of_texts_and_an_array_is_no_text():
    with pytest.raises(UserError, match="`texts` must be a list of texts"):
        Vocabulary.learn("word", "the cat")
    with pytest.raises(UserError, match="`special` must be a list of symbols"):
        Vocabulary.learn("word", ["the cat"], special="<eos>")
    with pytest.raises(UserError, match=r"a text must be `str` or `bytes`. Received: ndarray"):
        Vocabulary("byte", tuple(map(str, range(256)))).encode(np.array([72, 105]))
