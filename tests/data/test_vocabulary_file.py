import gzip
import json

import numpy as np
import pytest

from txl_tf.data.records.writing import write_records
from txl_tf.data.text.learning import LearningOptions
from txl_tf.data.text.vocabulary import Vocabulary, read_vocabulary_file
from txl_tf.errors import UserError


@pytest.fixture
def read(tmp_path):
    """Writes a file and reads it as a vocabulary."""

    def read(text, level="word", name="vocab.txt", **options):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_vocabulary_file(tmp_path / name, level, LearningOptions(**options))

    return read


@pytest.mark.parametrize("text", ["b\na\n文字", "b\r\na\r\n文字\r\n"])
def test_a_line_is_a_symbol(read, text):
    assert read(text) == Vocabulary("word", ("b", "a", "文字"))


def test_the_first_word_of_a_line_counts(read):
    assert read("the 5\n  a\t3\nof\u30002\n").symbols == ("the", "a", "of")


def test_options_are_those_of_the_vocabulary(read):
    options = {"lower_case": True, "line_start": "<s>", "line_end": "</s>"}
    found = read("a\n<s>\n</s>\n?\n", unknown="?", **options)
    assert found == Vocabulary("word", ("a", "<s>", "</s>", "?"), unknown="?", **options)


def test_symbols_with_a_meaning_must_be_in_the_file(read):
    with pytest.raises(UserError, match=r"vocab.txt` is not a vocabulary: `unknown` must be"):
        read("a\nb\n", unknown="c")


@pytest.mark.parametrize(("text", "line"), [("a\n\nb\n", 2), ("", 1)])
def test_a_blank_line_is_named(read, text, line):
    with pytest.raises(UserError, match=rf"vocab.txt` is not a vocabulary: line {line} is blank"):
        read(text)


def test_a_symbol_that_is_there_twice_is_named_with_both_lines(read):
    with pytest.raises(UserError, match="not a vocabulary: lines 2 and 5 both contain 'b'"):
        read("a\nb 7\nc\nd\nb 2\n")


def test_a_file_that_is_no_utf8_is_refused(read):
    with pytest.raises(UserError, match=r"txt` is not UTF-8: byte 0xff at offset 2 .* iconv -f"):
        read(b"a\n\xff\n")


@pytest.mark.parametrize(("name", "pack"), [("vocab.txt", bytes), ("vocab.txt.gz", gzip.compress)])
def test_a_byte_order_mark_is_no_part_of_the_first_word(read, name, pack):
    assert read(pack(b"\xef\xbb\xbfthe\na\n"), name=name).symbols == ("the", "a")


def test_a_json_may_begin_with_a_byte_order_mark(read):
    text = '\ufeff{"level": "char", "symbols": ["a"]}'
    assert read(text, "char", "vocabulary.json").symbols == ("a",)


@pytest.mark.parametrize("line", ["new york", "new 5 york", "the 5 7", "the to"])
def test_a_line_with_more_than_a_word_and_a_number_is_refused(read, line):
    with pytest.raises(UserError, match=r"vocabulary: line 2 must be a word, .* Received: '"):
        read(f"a\n{line}\nb\n")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a\nb\0\n", "vocab.txt"),
        ('{"level": "word", "symbols": ["a", "\\u0000b"]}', "vocabulary.json"),
        ('{"level": "word", "symbols": ["a", "\\ud800"]}', "vocabulary.json"),
    ],
)
def test_a_symbol_that_no_text_contains_is_refused(read, text, name):
    with pytest.raises(UserError, match=r"is not a vocabulary: no text contains '.*\\"):
        read(text, name=name)


@pytest.mark.parametrize("count", ["5", "-3.25", "1e-5", "1,024"])
def test_a_number_may_follow_a_word(read, count):
    assert read(f"the {count}\n").symbols == ("the",)


def test_a_symbol_a_line_is_for_words(read):
    with pytest.raises(UserError, match=r"needs level 'word', others a \.json"):
        read("a\n", level="char")


VOCABULARIES = {
    "byte": Vocabulary.learn("byte", [b"ab", bytes(range(256))]),
    "char": Vocabulary.learn("char", ["a bé"], space="_", unknown="a"),
    "word": Vocabulary.learn("word", ["a b"], line_end="</s>", lower_case=True),
    "subword": Vocabulary.learn("subword", ["the cat sat\n" * 3], max_symbols=269),
}


@pytest.mark.parametrize("level", ["char", "subword"])
def test_a_json_gives_the_vocabulary_of_a_run(read, level):
    text = json.dumps(VOCABULARIES[level].to_json())
    assert read(text, level, "vocabulary.json") == VOCABULARIES[level]


def test_a_json_of_another_level_is_refused(read):
    with pytest.raises(UserError, match=r"v.json` is not a vocabulary: it has chars, not words"):
        read(json.dumps(VOCABULARIES["char"].to_json()), "word", "v.json")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"level": "word"}', '{"level": ["word"], "symbols": ["a"]}']
    + [f'{{"level": "word", "symbols": {symbols}}}' for symbols in ("5", "[1]", "[[]]")],
)
def test_a_json_of_something_else_is_refused(read, text):
    with pytest.raises(UserError, match=r"v.json` is not a vocabulary: "):
        read(text, "word", "v.json")


def test_vocab_txt_of_records_gives_their_words(tmp_path):
    words = Vocabulary.learn("word", ["naïve a\x1cb 文字\u200bc </s> \ufeffd"], line_end="</s>")
    ids = np.arange(len(words))
    write_records(tmp_path, dataset="words", vocabulary=words, splits={"train": [ids]})
    options = LearningOptions(line_end="</s>")
    assert read_vocabulary_file(tmp_path / "vocab.txt", "word", options) == words
