"""Sessions: their tokens, the memory, and their speed."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from small_language_model import WORDS, make_model

from txl_tf import LanguageModel
from txl_tf.config import AttentionSpan
from txl_tf.data import Vocabulary
from txl_tf.errors import UserError
from txl_tf.generation.generator import Generator
from txl_tf.generation.session import Session, decode_added
from txl_tf.generation.token_loop import TokenLoop
from txl_tf.models.cached_model import CachedModel

MEM_LEN = 11
BYTES = Vocabulary("byte", tuple(map(str, range(256))))


@functools.cache  # the tests share what XLA compiles
def make_words_model():
    return make_model(7, vocabulary=WORDS, mem_len=MEM_LEN)


def start():
    return make_words_model().start(["the cat", np.array([1])])


def test_the_memory_holds_the_last_tokens():
    session = start()
    seen = []
    for length in (2, 3, 5):
        session.draw(length)
        seen.append(([len(ids) for ids in session.ids], session.n_in_memory))
    assert seen == [([4, 3], [4, 3]), ([7, 6], [7, 6]), ([12, 11], [MEM_LEN, MEM_LEN])]


def test_the_ids_are_those_of_prompt_and_text():
    session = start()
    session.draw(13)
    assert WORDS.decode(session.ids[0]) == "the cat" + session.added[0]
    np.testing.assert_array_equal(session.ids[1], [1, *session.added[1]])


@pytest.mark.parametrize(("part", "name"), [(CachedModel, "read"), (TokenLoop, "run")])
def test_full_memory_is_explained(part, name, monkeypatch):
    def fail(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr(part, name, fail)
    with pytest.raises(UserError, match="too little memory to generate: try fewer texts"):
        make_model(7, vocabulary=WORDS, mem_len=MEM_LEN).start(["the cat"]).draw(3)


def test_a_text_that_cannot_be_read_is_not_added(monkeypatch):
    session = start()
    before = session.added
    with monkeypatch.context() as failing:
        failing.setattr(Generator, "read", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.read(np.array([1, 2]))
    for old, new in zip(before, session.added, strict=True):
        np.testing.assert_array_equal(new, old)


def test_speeds_leave_the_first_call_out(monkeypatch):
    clock = iter(np.cumsum([0, 64, 0, 1, 0, 2]).tolist())
    session = start()
    calls = session.draw_pieces(80)
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    next(calls)
    assert session.speeds is None
    next(calls)
    assert session.speeds == (32, 32)
    next(calls)
    assert session.speeds == (1 / np.median([1 / 32, 2 / 16]),) * 2


def test_speeds_are_those_of_the_first_and_the_last_calls(monkeypatch):
    session, seconds = start(), [99, 1, 2, 3, 4, *[99] * 5, 5, 6, 7, 8]
    clock = iter(np.cumsum([[0, cost] for cost in seconds]).tolist())
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    for _ in seconds:
        session.draw(1)
    assert session.speeds == (1 / 2.5, 1 / 6.5)
    assert len(vars(session)["_costs"]) == 9


@pytest.mark.parametrize("stops", [(), ("mat",)], ids=["no_stop", "stop"])
def test_a_text_that_is_read_continues_as_if_it_had_been_in_the_prompt(stops):
    lm = make_words_model()
    settings = {"temperature": 0.0, "stops": stops}
    session = lm.start(["the cat"], **settings)
    session.draw(5)
    session.read(" sat on the")
    prompt = WORDS.decode(session.ids[0])
    assert prompt.endswith("sat on the")
    session.draw(41)
    whole = lm.start([prompt], **settings)
    whole.draw(41)
    np.testing.assert_array_equal(session.ids[0], whole.ids[0])


def test_texts_after_a_change_of_the_weights_are_those_of_a_new_model():
    lm = make_model(7, vocabulary=WORDS, mem_len=MEM_LEN)
    settings = {"max_new_tokens": 20, "temperature": 9.0}
    lm.generate("the", **settings)
    for layer in lm.model.decoder_layers:
        layer.attention.r_kernel.assign(-5 * layer.attention.r_kernel)
    new = LanguageModel(lm.model, WORDS, lm.evaluation)
    assert lm.generate("the cat", **settings) == new.generate("the cat", **settings)


def test_texts_of_all_lengths_are_read_by_one_function():
    generator = Generator(CachedModel(make_model(7).model, AttentionSpan(MEM_LEN), 5))
    session = Session(generator, None, [np.array([1])])
    for length in (3, 50, 90):
        session.read(np.ones(length, np.int32))
    read = vars(generator)["_read_added"]
    assert read.experimental_get_tracing_count() == 1


def test_a_text_ends_at_a_whole_character_and_only_grows():
    """Wherever the prompt ends, and with bytes that are no character."""
    data = "aé日🜁".encode() + b"\xff\xe6a\x97"
    ids = np.frombuffer(data, np.uint8)
    for begin in range(len(ids)):
        texts = [decode_added(BYTES, ids[:begin], ids[begin:end]) for end in range(begin, len(ids))]
        assert all(new.startswith(old) for old, new in itertools.pairwise(texts))
    texts = [decode_added(BYTES, ids[:0], ids[:end]) for end in range(len(ids) + 1)]
    assert texts[:7] == ["", "a", "a", "aé", "aé", "aé", "aé日"]
    assert texts[-1] == BYTES.decode(ids)


def test_a_session_of_ids_reads_ids_only():
    session = start()
    session.read(np.array([1, 2]))
    np.testing.assert_array_equal(session.ids[0][-2:], [1, 2])
    before = session.ids
    for wrong, message in (("the", "pass ids, not text"), (np.array([-1]), "at least 0")):
        with pytest.raises(UserError, match=message):
            session.read(wrong)
    for ids, expected in zip(session.ids, before, strict=True):  # also of a row that can read it
        np.testing.assert_array_equal(ids, expected)


def test_a_stream_is_of_one_text():
    for prompts in (["the", "a"], [np.array([1])]):
        with pytest.raises(UserError, match="`stream` needs one prompt, given as text"):
            next(make_words_model().start(prompts).stream(3))
