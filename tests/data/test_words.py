import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.data.text.words import WHITE_SPACE, convert_to_lower_case, split_words

FUZZ = settings(max_examples=17, deadline=None, derandomize=True)
# Which symbols mark lines; the last is that of lm1b.
MARKS = {
    "none": {},
    "end": {"line_end": "</s>"},
    "start": {"line_start": "<s>"},
    "both": {"line_start": "<s>", "line_end": "</s>"},
    "same": {"line_start": "<S>", "line_end": "<S>"},
}
SYMBOLS = ("<unk>", "<s>", "</s>", "<S>", "a", "b", "ß", "文字", "🜁")
# Words that are known, and not; white space of all kinds; and marks in the text itself.
PIECES = (*["a", "b", "ß", "文字", "🜁", "hat", "</s>", "<S>", "<unk>"], *" \t\r\u2003\n\n", "  ")
TEXTS = st.lists(st.sampled_from(PIECES), max_size=23).map("".join)


def make(marks="none", **changes):
    return Vocabulary("word", SYMBOLS, **{"unknown": "<unk>", **MARKS[marks], **changes})


def encode_slowly(text, vocabulary):
    """Encodes word by word, as the documentation says."""
    symbols = []
    *lines, rest = text.split("\n")
    for line, is_finished in [(line, True) for line in lines] + [(rest, False)]:
        if vocabulary.line_start and (is_finished or line):
            symbols.append(vocabulary.line_start)
        symbols += filter(None, WHITE_SPACE.split(line))
        if vocabulary.line_end and is_finished:
            symbols.append(vocabulary.line_end)
    return [SYMBOLS.index(symbol) if symbol in SYMBOLS else 0 for symbol in symbols]


def list_words(text):
    """Returns the words of each line."""
    return [list(filter(None, WHITE_SPACE.split(line))) for line in text.split("\n")]


def test_words_are_split_on_the_white_space_of_unicode_alone():
    codes = [code for code in range(0x10000) if not 0xD800 <= code < 0xE000]
    n_words = split_words([f"a{chr(code)}b" for code in codes]).row_lengths().numpy()
    found = {code for code, n in zip(codes, n_words, strict=True) if n == 2}
    assert found == {code for code in codes if WHITE_SPACE.match(chr(code))}


def test_lower_case_continues_after_a_nul():
    texts = ["A\0B", "\0", "", "\0\0É"]
    found = convert_to_lower_case(texts).numpy()
    assert [text.decode() for text in found] == [text.lower() for text in texts]


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ("none", "a b a"),
        ("end", "a b </s> </s> a"),
        ("start", "<s> a b <s> <s> a"),
        ("both", "<s> a b </s> <s> </s> <s> a"),
        ("same", "<S> a b <S> <S> <S> <S> a"),
    ],
)
def test_lines_that_are_finished_get_their_marks(marks, expected):
    vocabulary = make(marks)
    symbols = [SYMBOLS[i] for i in vocabulary.encode("a b\n\na")]
    assert " ".join(symbols) == expected


@FUZZ
@given(marks=st.sampled_from(list(MARKS)), text=TEXTS)
def test_any_text_is_encoded_word_by_word(marks, text):
    vocabulary = make(marks)
    assert vocabulary.encode(text).tolist() == encode_slowly(text, vocabulary)


@FUZZ
@given(
    marks=st.sampled_from(list(MARKS)),
    texts=st.lists(TEXTS.map(lambda text: text + "\n"), min_size=2, max_size=5),
)
def test_pieces_of_whole_lines_give_the_ids_of_the_whole(marks, texts):
    codec = make(marks).codec
    pieces = [codec.encode(text.encode()).ids for text in texts]
    whole = codec.encode("".join(texts).encode()).ids
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


@FUZZ
@given(
    marks=st.sampled_from(list(MARKS)),
    words=st.lists(st.sampled_from(["a", "b", "ß", "\n"]), min_size=3, max_size=23),
    data=st.data(),
)
def test_a_line_cut_before_a_space_continues_without_a_mark(marks, words, data):
    codec = make(marks).codec
    text = " ".join(words).encode()
    places = [place for place, byte in enumerate(text) if byte == 32 and text[place - 1] != 10]
    if places:
        place = data.draw(st.sampled_from(places))
        parts = [
            codec.encode(text[:place]).ids,
            codec.encode(text[place:], begins_line=False).ids,
        ]
        np.testing.assert_array_equal(np.concatenate(parts), codec.encode(text).ids)


@pytest.mark.parametrize("marks", ["none", "same"])
def test_positions_are_the_ids_before_lines(marks):
    codec = make(marks).codec
    text = "é b\n\n文字 🜁 a\nb\nb".encode()
    offsets = np.array([0, 5, 6, 20, 22])
    assert [text[offset - 1 : offset] for offset in offsets] == [b"", *[b"\n"] * 4]
    expected = [len(codec.encode(text[:offset]).ids) for offset in offsets]
    np.testing.assert_array_equal(codec.encode(text, offsets).positions, expected)


def test_unknown_words_are_counted_in_order_of_first_appearance():
    unknown = make().codec.encode(b"hat a cat hat").unknown
    assert list(unknown.items()) == [("hat", 2), ("cat", 1)]


def test_without_a_symbol_for_them_unknown_words_are_minus_one():
    encoded = make(unknown=None, marks="end").codec.encode(b"a hat\n")
    np.testing.assert_array_equal(encoded.ids, [4, -1, 2])


def test_words_are_looked_up_in_lower_case():
    np.testing.assert_array_equal(make(lower_case=True).encode("A B Hat"), [4, 5, 0])


@FUZZ
@given(
    marks=st.sampled_from(["end", "both", "same"]),
    text=st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=29),
)
def test_decode_gives_the_words_and_lines_of_any_text(marks, text):
    learned = Vocabulary.learn("word", [text], **MARKS[marks])
    assert list_words(learned.decode(learned.encode(text))) == list_words(text)


def test_a_long_text_is_encoded_by_a_graph_twice():
    codec = Vocabulary("word", ("b", "a")).codec
    text = b"a b " * 20_011  # long enough to be worth a graph
    for _ in range(2):
        np.testing.assert_array_equal(codec.encode(text).ids, [1, 0] * 20_011)
