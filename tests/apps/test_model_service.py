"""Texts that requests continue, without a server."""

import dataclasses
import re
import warnings

import pytest
from small_language_model import WORDS, make_model

from txl_tf.apps.server.api_requests import CompletionRequest, ScoreRequest
from txl_tf.apps.server.model_service import ModelService, ServedTexts
from txl_tf.data import Vocabulary
from txl_tf.errors import UserError

# The bytes of "a", "b", a space, and of characters of two and of three bytes.
BYTES = Vocabulary("byte", ("97", "98", "32", "195", "164", "226", "130", "172"))


@pytest.fixture(scope="module")
def lm():
    return make_model(7, vocabulary=WORDS, same_length=True)


@pytest.fixture(scope="module")
def binary():
    return make_model(8, vocabulary=BYTES)


def start(lm, prompt, **settings):
    return ServedTexts(lm, CompletionRequest(prompt=(prompt,), **settings))


def draw(texts, max_tokens, piece_len=3):
    """Returns the choice of a single text, put together from its pieces."""
    *pieces, last = [choice for (choice,) in texts.draw(max_tokens, piece_len)]
    assert all(piece.finish_reason is None for piece in pieces)
    return last._replace(text="".join(piece.text for piece in [*pieces, last]))


@pytest.mark.parametrize("stop", ["mat", "at s", "\n"])
def test_the_stop_is_no_part_of_the_text(stop, lm):
    settings = {"temperature": 9.0, "seed": 1}
    whole = lm.generate("the cat", max_new_tokens=60, stops=stop, **settings)
    choice = draw(start(lm, "the cat", stop=(stop,), **settings), 60)
    assert choice.text == whole[: whole.rindex(stop)]
    assert (choice.n_tokens, choice.finish_reason) == (len(WORDS.encode(whole)), "stop")


def test_a_stop_that_is_a_symbol_leaves_earlier_text_alone(lm):
    """The name of the symbol "<eos>" stands nowhere; another stop may be a part of a word."""
    settings = {"temperature": 9.0, "seed": 1}
    whole = lm.generate("the cat", max_new_tokens=60, stops=["<eos>", "a"], **settings)
    choice = draw(start(lm, "the cat", stop=("<eos>", "a"), **settings), 60)
    assert choice.text == whole.removesuffix("a")


def test_a_text_ends_before_the_first_stop_of_its_last_token():
    lm = make_model(2, vocabulary=Vocabulary("word", ("a", "possess")))
    choice = draw(start(lm, "a", stop=("ss",), temperature=9.0), 60)
    assert re.fullmatch(r"( a)* po", choice.text)
    assert choice.finish_reason == "stop"


def test_a_stop_may_end_inside_a_character_of_several_tokens(binary):
    settings = {"temperature": 9.0, "seed": 1, "stop": ("ä",)}
    whole = binary.generate("a", max_new_tokens=300, temperature=9.0, seed=1, stops="ä")
    assert whole.endswith("ä")
    choice = draw(start(binary, "a", **settings), 300)
    assert (choice.text, choice.finish_reason) == (whole.removesuffix("ä"), "stop")


def test_a_stop_is_written_in_lower_case_as_the_texts_are():
    lm = make_model(7, vocabulary=dataclasses.replace(WORDS, lower_case=True))
    choice = draw(start(lm, "the cat", stop=("At",), temperature=9.0, seed=1), 60)
    assert choice.finish_reason == "stop"
    assert "at" not in choice.text


def test_a_text_goes_on_after_its_stop(lm):
    settings = {"temperature": 9.0, "seed": 1}
    texts = start(lm, "the cat", stop=("mat",), **settings)
    found = [draw(texts, 60).text for _ in range(3)]
    expected = lm.generate("the cat", max_new_tokens=60, **settings)
    assert expected.startswith("mat".join([*found, ""]))


def test_a_stop_that_two_requests_divide_shows_none_of_its_second_part(binary):
    settings = {"temperature": 9.0, "seed": 1}
    expected = binary.generate("a", max_new_tokens=60, stops="a ", **settings)
    assert expected.endswith("a ")
    texts = start(binary, "a", stop=("a ",), **settings)
    answers = [draw(texts, 1)]
    while answers[-1].finish_reason == "length":
        answers.append(draw(texts, 1))
    # The first part of the stop was shown before the second one could be known.
    assert "".join(answer.text for answer in answers) == expected.removesuffix(" ")
    assert answers[-1] == ("", 1, "stop")


def test_a_stop_that_an_answer_without_an_end_divides_shows_none_of_its_second_part(binary):
    settings = {"temperature": 9.0, "seed": 1}
    n_tokens = draw(start(binary, "a", stop=("a ",), **settings), 60).n_tokens
    texts = start(binary, "a", stop=("a ",), **settings)
    abandoned = texts.draw(60, 1)
    for _ in range(n_tokens - 1):
        next(abandoned)
    assert draw(texts, 5) == ("", 1, "stop")


def test_no_token_is_no_end(lm):
    texts = start(lm, "the cat", stop=("mat",), temperature=9.0, seed=1)
    assert draw(texts, 0) == ("", 0, "length")
    assert draw(texts, 60).finish_reason == "stop"
    assert draw(texts, 0) == ("", 0, "length")


@pytest.mark.slow
def test_characters_are_whole_however_requests_cut_them(binary):
    """A character that the end of a request cuts stands in the next answer."""
    settings = {"temperature": 9.0, "seed": 1}
    expected = binary.generate("a", max_new_tokens=60, **settings)
    assert any(character not in "ab \ufffd" for character in expected)
    assert draw(start(binary, "a", **settings), 60).text == expected
    texts = start(binary, "a", **settings)
    assert "".join(draw(texts, 1).text for _ in range(60)) == expected


def test_compiled_programs_are_bounded(lm, monkeypatch):
    monkeypatch.setattr("txl_tf.apps.server.model_service._MAX_PROGRAMS", 2)
    service = ModelService(lm, "mats")
    for top_k in (1, 7, 1, 40):  # of 7 tokens
        service.start(CompletionRequest(prompt=("a",), top_k=top_k))
    with pytest.raises(UserError, match="the server keeps 2 compiled programs"):
        service.start(CompletionRequest(prompt=("a",), top_k=3))


@pytest.mark.parametrize(("symbols", "text"), [("a\n ", "\n"), ("a ", " "), ("ab", "")])
def test_a_text_without_a_prompt_begins_with_what_the_vocabulary_has(symbols, text):
    vocabulary = Vocabulary("char", tuple(symbols))
    lm = make_model(len(symbols), vocabulary=vocabulary)
    assert ModelService(lm, "mats").default_prompt == text


def test_a_model_of_ids_is_not_served():
    with pytest.raises(UserError, match="has no vocabulary: it cannot encode texts"):
        ModelService(make_model(7), "ids")


def test_texts_are_scored_in_turns_unless_they_are_one(lm, monkeypatch):
    monkeypatch.setattr("txl_tf.apps.server.model_service._SCORE_PIECE", 2)
    service, texts = ModelService(lm, "mats"), ("a cat", "the cat sat", "", "a", "a mat")
    for carries, sizes in ((False, [2, 2, 1]), (True, [5])):
        pieces = list(service.score(ScoreRequest(texts=texts, carry_memory=carries)))
        assert [len(piece) for piece in pieces] == sizes
        expected = lm.score(texts, carry_memory=carries)
        found = [score["total_nats"] for piece in pieces for score in piece]
        assert found == pytest.approx([score.total_nats for score in expected], abs=1e-5)


def test_a_text_that_is_not_unicode_is_refused(lm):
    texts = start(lm, "the cat")
    with pytest.raises(UserError, match=r"^a text is not UTF-8: "):
        list(texts.read("\ud800"))


def test_measures_that_a_text_does_not_have_are_null(binary):
    request = ScoreRequest(texts=("a",))
    ((score,),) = ModelService(binary, "binary").score(request)
    assert score["tokens"] == 0
    assert score["bpc"] is None
    assert score["perplexity"] is None


def test_unknown_tokens_are_in_the_answer_and_not_in_a_warning():
    known = Vocabulary("word", ("<unk>", "the", "cat"), unknown="<unk>")
    service = ModelService(make_model(3, vocabulary=known), "pets")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ((score,),) = service.score(ScoreRequest(texts=("the dog",)))
    assert score["n_unknown"] == 1
