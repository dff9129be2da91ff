import dataclasses
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_tf.data.text import subwords
from txl_tf.data.text.learning import LearningOptions, learn_fields
from txl_tf.data.text.subwords import BYTES, NEWLINE, UNKNOWN, learn_subwords, sample_lines
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.data.text.words import WHITE_SPACE
from txl_tf.errors import UserError

FUZZ = settings(max_examples=61, deadline=None, derandomize=True)
TEXT = "the cat sat on the mat\nthe dog sat on the log, and the cat on the dog\n" * 7
# Any character that UTF-8 has, and those that mean something to SentencePiece.
ANY_TEXT = st.text(
    alphabet=st.one_of(
        st.characters(exclude_categories=("Cs",)),
        st.sampled_from("\u2581 \0\r\n\t\u2047\u2585the"),
    ),
    max_size=61,
)


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.learn("subword", [TEXT], max_symbols=307)


def test_unknown_newline_and_bytes_come_before_the_pieces(vocabulary):
    assert len(vocabulary) == 307
    assert vocabulary.symbols[:258] == (UNKNOWN, NEWLINE, *BYTES)


def test_pieces_hold_spaces_as_they_are(vocabulary):
    assert " the" in vocabulary.symbols
    assert not any("\u2581" in symbol for symbol in vocabulary.symbols)


def test_no_piece_reaches_over_a_word_or_a_line(vocabulary):
    assert not [piece for piece in vocabulary.symbols[258:] if WHITE_SPACE.search(piece[1:])]


@FUZZ
@given(text=ANY_TEXT)
def test_any_text_comes_back_and_is_known(vocabulary, text):
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text
    assert 0 not in ids


@FUZZ
@given(texts=st.lists(ANY_TEXT.map(lambda text: text + "\n"), min_size=2, max_size=5))
def test_pieces_of_whole_lines_give_the_ids_of_the_whole(vocabulary, texts):
    pieces = [vocabulary.encode(text) for text in texts]
    np.testing.assert_array_equal(np.concatenate(pieces), vocabulary.encode("".join(texts)))


@FUZZ
@given(words=st.lists(st.sampled_from(["the", "cat", "sat", "é"]), min_size=2), data=st.data())
def test_a_line_cut_before_a_space_has_the_ids_of_the_whole(vocabulary, words, data):
    place = data.draw(st.integers(1, len(words) - 1))
    parts = [" ".join(words[:place]), "".join(" " + word for word in words[place:])]
    ids = [vocabulary.encode(part) for part in parts]
    np.testing.assert_array_equal(np.concatenate(ids), vocabulary.encode("".join(parts)))


@pytest.mark.parametrize("end", ["", "\n"])
def test_positions_are_the_ids_before_lines(vocabulary, end):
    text = f"the cät\n\n文字 the\nsat on{end}".encode()
    offsets = np.array([0, 9, 10, 21])
    assert [text[offset - 1 : offset] for offset in offsets] == [b"", *[b"\n"] * 3]
    expected = [len(vocabulary.encode(text[:offset])) for offset in offsets]
    np.testing.assert_array_equal(vocabulary.codec.encode(text, offsets).positions, expected)


@FUZZ
@given(text=ANY_TEXT.filter(lambda text: text.isascii() or text == text.lower()))
def test_lower_case_changes_letters_alone(lower, text):
    assert lower.decode(lower.encode(text)) == text.lower()
    assert "the" in lower.symbols


@pytest.fixture(scope="module")
def lower():
    return Vocabulary.learn("subword", [TEXT.upper()], max_symbols=293, lower_case=True)


def test_the_model_does_not_depend_on_how_whole_lines_are_cut():
    lines = [line + b"\n" for line in TEXT.encode().splitlines()]
    assert learn_subwords(lines, 307) == learn_subwords([TEXT.encode()], 307)


def test_json_gives_the_same_ids(vocabulary):
    again = Vocabulary.from_json(vocabulary.to_json())
    np.testing.assert_array_equal(again.encode(TEXT), vocabulary.encode(TEXT))


LINES = [f"{index:02d}" for index in range(53)]


@pytest.mark.parametrize(("n_bytes", "stride"), [(106, 1), (105, 2), (3, 64)])
def test_lines_are_taken_at_equal_distances_until_they_fit(n_bytes, stride):
    text = "".join(line + "\n" for line in LINES).encode()
    assert sample_lines([text], n_bytes) == (LINES[::stride], stride)


def test_lines_are_counted_over_all_texts():
    texts = [b"00\n01\n02\n", b"03\n\n \n\0\n04\n", b"05\n06"]
    assert sample_lines(texts, 8) == (["00", "02", "04", "06"], 2)


def test_the_user_is_told_that_lines_were_left_out(monkeypatch):
    monkeypatch.setattr(subwords, "_SAMPLE_BYTES", 7 * 22)
    reported = []
    options = LearningOptions(max_symbols=277)
    learn_fields("subword", [TEXT.encode()], options, report=reported.append)
    assert reported == ["The subwords are learned from 1 of every 2 lines."]


@pytest.mark.parametrize(
    ("texts", "n_symbols", "reason"),
    [
        ([TEXT], 10007, "Vocabulary size too high"),
        (["abcdefg " * 11], 263, "Vocabulary size is smaller than required_chars"),
        (["\n \n\0"], 307, "the text is empty"),
    ],
)
def test_texts_that_subwords_cannot_be_learned_from_are_refused(texts, n_symbols, reason):
    with pytest.raises(
        UserError, match=f"{n_symbols} subwords cannot be learned .*: {reason}"
    ) as e:
        learn_subwords([text.encode() for text in texts], n_symbols)
    assert "\n" not in str(e.value)


def test_sentencepiece_is_needed_to_learn_alone(vocabulary, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    again = Vocabulary.from_json(vocabulary.to_json())
    np.testing.assert_array_equal(again.encode("the"), vocabulary.encode("the"))
    rule = r"needs the package sentencepiece: pip install -e '\.\[subword\]'$"
    with pytest.raises(UserError, match=rule):
        learn_subwords([TEXT.encode()], 307)


def test_subwords_need_their_model(vocabulary):
    with pytest.raises(UserError, match="`sentencepiece` must be given at level 'subword'"):
        Vocabulary("subword", vocabulary.symbols)


def test_symbols_of_subwords_begin_with_the_bytes(vocabulary):
    symbols = (UNKNOWN, NEWLINE, *BYTES[::-1], "a")
    with pytest.raises(UserError, match=r"must begin with '<unk>', '\\n' and the 256 bytes"):
        Vocabulary("subword", symbols, sentencepiece=vocabulary.sentencepiece)


@pytest.mark.parametrize("model", ["!!!", "QUJD", 5])
def test_a_damaged_model_is_one_line(vocabulary, model):
    damaged = dataclasses.replace(vocabulary, sentencepiece=model)
    with pytest.raises(UserError, match=r"is not a SentencePiece model in base64"):
        damaged.encode("the cat")
