"""Stops of any length: what they mean, where they are found, and where they leave a session."""

import numpy as np
import pytest
import small_language_model
from small_language_model import WORDS

from txl_tf.data import Vocabulary
from txl_tf.data.text.subwords import BYTES as BYTE_PIECES
from txl_tf.errors import UserError
from txl_tf.generation.stops import StopFinder, Stops

BYTES = Vocabulary("byte", tuple(map(str, range(256))))
CHARS = Vocabulary("char", tuple("\n abcde,\u00e9"))
TEXT8 = Vocabulary("char", ("_", "a", "b"), space="_")
LOWER = Vocabulary("word", ("the", "cat"), lower_case=True)


@pytest.fixture(scope="module")
def subwords():
    text = "the cat sat on the mat\nthe dog sat on the log, and the cat on the dog\n" * 7
    return Vocabulary.learn("subword", [text], max_symbols=307)


def make_model(vocabulary):
    return small_language_model.make_model(len(vocabulary), vocabulary=vocabulary, same_length=True)


@pytest.fixture(scope="module")
def chars():
    return make_model(CHARS)


@pytest.mark.parametrize(
    ("vocabulary", "stop", "ids", "strings"),
    [
        (BYTES, "\n", (10,), ()),
        (BYTES, "\u00e9", (), ("\u00e9".encode(),)),
        (CHARS, ",", (7,), ()),
        (TEXT8, "_", (0,), ()),
        (TEXT8, " ", (0,), ()),
        (TEXT8, "a b", (), (b"a b",)),
        (WORDS, "<eos>", (0,), ()),
        (WORDS, "\n", (0,), ()),
        (WORDS, "at", (), (b"at",)),
        (WORDS, "at on the\n\na", (), (b"at on the\n\na",)),
        (LOWER, "The Cat", (), (b"the cat",)),
    ],
)
def test_a_stop_is_a_symbol_or_a_text(vocabulary, stop, ids, strings):
    stops = Stops(vocabulary, [stop])
    assert (stops.ids, stops.strings) == (ids, strings)


def test_a_subword_is_looked_for_in_the_text_too(subwords):
    token = subwords.symbols.index(" the")
    stops = Stops(subwords, [" the", "\n", "<0x0A>"])
    assert stops.ids == (token, 1, 2 + 10)
    assert stops.strings == (b" the", b"\n")


@pytest.mark.parametrize(
    ("vocabulary", "stop"),
    [
        (BYTES, "\udcff"),
        (CHARS, "abx"),
        (TEXT8, "a_b"),
        (WORDS, "dog"),
        (WORDS, "the  cat"),
        (LOWER, "the\ncat"),
    ],
)
def test_a_stop_that_cannot_come_is_refused(vocabulary, stop):
    with pytest.raises(UserError, match=r"`stops` must be symbols of the vocabulary or texts"):
        Stops(vocabulary, ["\n" if vocabulary is WORDS else "a", stop])


def test_an_empty_stop_is_refused():
    with pytest.raises(UserError, match=r"`stops` must be texts of at least one .* Received: ''"):
        Stops(CHARS, ["a", ""])


def test_an_end_does_not_depend_on_how_calls_are_cut():
    """All texts of two letters and 9 tokens, against the same search in the whole text."""
    vocabulary = Vocabulary("char", ("a", "b"))
    stops = Stops(vocabulary, ["aba", "bbab", "abba"])
    for number in range(2**9):
        ids = np.array([number >> place & 1 for place in range(9)], np.int32)
        text = vocabulary.decode(ids)
        ends = [text.find(stop) + len(stop) for stop in ("aba", "bbab", "abba") if stop in text]
        for step in (1, 2, 5, 9):
            finder, found = StopFinder(stops, last_id=0), None
            for start in range(0, 9, step):
                end = finder.find_end(ids[start : start + step])
                if end is not None:
                    found = start + end.n_kept
                    break
            assert found == min(ends, default=None), (text, step)


def test_a_stop_does_not_begin_before_the_last_end():
    finder = StopFinder(Stops(CHARS, ["aa"]), last_id=CHARS.encode("a")[0])
    assert finder.find_end(CHARS.encode("a")) is None
    assert finder.find_end(CHARS.encode("ab")).n_kept == 1
    assert finder.find_end(CHARS.encode("a")) is None
    assert finder.find_end(CHARS.encode("a")).n_kept == 1


def test_a_stop_does_not_begin_before_the_token_that_ended_a_text():
    finder = StopFinder(Stops(CHARS, ["b", "ba"]), last_id=CHARS.encode("a")[0])
    assert finder.find_end(CHARS.encode("ab")) is None  # the loop finds the token
    assert finder.find_end(CHARS.encode("a")) is None
    assert finder.find_end(CHARS.encode("ba")).n_kept == 2


def test_a_subword_is_cut_behind_a_stop(subwords):
    ids = subwords.encode(" the cat")
    assert len(ids) < 8
    end = StopFinder(Stops(subwords, ["he"]), last_id=1).find_end(ids)
    kept = [*ids[: end.n_kept], *end.rest]
    assert subwords.decode(kept) == " the"
    end = StopFinder(Stops(subwords, [" t"]), last_id=1).find_end(ids)
    assert end.n_kept == 0
    assert subwords.decode(end.rest) == " t"


def test_a_word_is_not_cut():
    ids = WORDS.encode("the cat sat")
    end = StopFinder(Stops(WORDS, ["e c"]), last_id=0).find_end(ids)
    assert (end.n_kept, len(end.rest)) == (2, 0)


def generate(lm, prompt, **arguments):
    return lm.generate(prompt, max_new_tokens=89, temperature=3.0, seed=5, **arguments)


def test_a_character_of_several_bytes_is_found_across_calls():
    finder = StopFinder(Stops(BYTES, ["\u00e9"]), last_id=0xC3)
    assert finder.find_end(np.array([0xA9, 0x61, 0xC3], np.int32)) is None
    assert finder.find_end(np.array([0xA9, 0x61], np.int32)).n_kept == 1


def test_a_text_ends_with_its_first_stop_across_calls_of_the_loop(chars):
    """The loop draws 32 tokens at a time: the stop begins in one call and ends in the next."""
    text = generate(chars, "abc")
    stop = text[27:37]
    assert text.index(stop) == 27
    assert generate(chars, "abc", stops=[text[50:60], stop, text[60:70]]) == text[:37]


def test_a_stop_does_not_begin_in_the_prompt(chars):
    text = generate(chars, "abc")
    stop = "bc" + text[:2]
    assert stop not in text
    assert generate(chars, "abc", stops=[stop]) == text


def test_ids_and_streams_are_ended_by_texts_too(chars):
    ids, text = CHARS.encode("abc"), generate(chars, "abc")
    found = generate(chars, ids, stops=[text[27:37]])
    assert CHARS.decode(found) == text[:37]
    settings = {"max_new_tokens": 89, "temperature": 3.0, "seed": 5}
    assert "".join(chars.stream("abc", stops=[text[27:37]], **settings)) == text[:37]


@pytest.mark.slow
def test_a_session_continues_after_a_stop_as_if_there_had_been_none(chars):
    """Rows end in different calls of the loop, by a token or by a text, and go on at once."""
    prompts = ["abc", "d", "cab a bed, a bad cab"]
    settings = {"temperature": 3.0, "seed": [5, 6, 7]}
    whole = chars.generate(prompts, max_new_tokens=200, **settings)
    stops = [whole[0][27:37], ",", whole[-1][40:44]]
    session = chars.start(prompts, stops=stops, **settings)
    n_ended = 0
    for _ in range(40):
        if min(map(len, session.added)) >= 160:
            break
        before = session.added
        new = session.draw(47)
        n_ended += int(session.ended.sum())
        assert session.added == [old + more for old, more in zip(before, new, strict=True)]
        for text, has_ended in zip(new, session.ended, strict=True):
            assert has_ended == any(text.endswith(stop) for stop in stops)
            assert not any(stop in text[:-1] for stop in stops)
    assert n_ended > 3
    for text, expected in zip(session.added, whole, strict=True):
        n_same = min(len(text), len(expected))
        assert text[:n_same] == expected[:n_same]


@pytest.mark.slow
def test_a_session_stands_behind_the_stop_that_cut_a_subword(subwords):
    """It goes on as one that reads the text up to the stop."""
    lm, ids = make_model(subwords), subwords.encode("a dog")
    settings = {"temperature": 0.0, "banned": [*BYTE_PIECES, "<unk>", "\n"]}
    whole = lm.generate(ids, max_new_tokens=61, **settings)
    stop = next(piece[:-1] for piece in map(subwords.symbols.__getitem__, whole) if len(piece) > 2)
    session = lm.start([ids], stops=[stop], **settings)
    (added,) = session.draw(61)
    assert added.tolist() != whole[: len(added)].tolist()  # its last subword was cut
    assert subwords.decode(whole).startswith(subwords.decode(added))
    text = subwords.decode(lm.generate(np.concatenate([ids, added]), max_new_tokens=13, **settings))
    (new,) = session.draw(13)
    assert text.startswith(subwords.decode(new))
    assert len(new)


def test_a_subword_that_is_cut_into_several_uses_one_random_number(subwords):
    """Without weights all tokens are equally likely: a token depends on its number alone."""
    lm, ids = make_model(subwords), subwords.encode("a dog")
    for weight in lm.model.weights:
        weight.assign(np.zeros(weight.shape))
    settings = {"temperature": 1.0, "top_k": None, "seed": 5, "banned": BYTE_PIECES}
    whole = lm.generate(ids, max_new_tokens=90, **settings)
    pieces = [subwords.symbols[token] for token in whole]
    place, cut = next(
        (place, piece[:n])
        for place, piece in enumerate(pieces)
        for n in range(2, len(piece))
        if place and len(subwords.encode(piece[:n])) > 1
    )
    session = lm.start([ids], stops=[pieces[place - 1] + cut], **settings)
    rest = subwords.encode(cut)
    (added,) = session.draw(90)
    assert added.tolist() == [*whole[:place], *rest]
    (new,) = session.draw(9)
    assert new.tolist() == whole[place + 1 : place + 10].tolist()


@pytest.mark.slow
def test_texts_that_have_ended_can_be_left_as_they_are(chars):
    session = chars.start(["abc", "d"], stops=[","], temperature=3.0, seed=5)
    session.draw(10)
    while not session.ended.any():
        session.draw(1, resume=False)
    (row,) = np.flatnonzero(session.ended)
    before = session.added
    session.draw(7, resume=False)
    assert session.added[row] == before[row]
    assert len(session.added[1 - row]) > len(before[1 - row])
