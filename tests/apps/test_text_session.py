"""Sessions by the signatures of a SavedModel, without a server."""

import numpy as np
import pytest
from small_language_model import WORDS, make_model

from txl_tf.apps.server.served_folder import ServedFolder
from txl_tf.apps.server.text_session import SessionEngine, TextSession
from txl_tf.data import Vocabulary
from txl_tf.errors import UserError
from txl_tf.generation.sampling import SamplingConfig

# The bytes of "a", "b", a space, and of characters of two and of three bytes.
BYTES = Vocabulary("byte", ("97", "98", "32", "195", "164", "226", "130", "172"))
GREEDY = SamplingConfig(temperature=0)


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    path = tmp_path_factory.mktemp("bytes") / "bytes"
    make_model(len(BYTES), vocabulary=BYTES).export(path)
    return ServedFolder(str(path), None, max_length=1000, max_bytes=10_000)


@pytest.fixture(scope="module")
def engine(words):
    return SessionEngine(words)


def read(session, text):
    return sum(1 for _ in session.read(text.encode()))


def draw(session, length, config=GREEDY):
    sampling = config.make_tensors(session.engine.n_token)
    return [session.draw(config, sampling) for _ in range(length)]


def join(tokens):
    return "".join(token.text for token in tokens)


def generate(folder, text, length, temperature=0.0, top_k=0, seed=0):
    inputs = {"text": text.encode(), "length": length, "temperature": temperature}
    inputs |= {"top_k": top_k, "seed": seed}
    arrays = {name: np.array(value) for name, value in inputs.items()}
    return folder.call("generate_text", arrays)["text"].item()


@pytest.mark.slow
def test_the_likeliest_text_is_that_of_the_signature(words, engine):
    for text in ("the cat sat on", "the"):
        session = TextSession(engine)
        read(session, text)
        assert join(draw(session, 37)).encode() == generate(words, text, 37)


@pytest.mark.parametrize("top_k", [None, 3])
def test_a_seed_gives_the_text_of_the_signature(words, engine, top_k):
    """However it is cut into requests, and over more than one block of random numbers."""
    for seed in (0, 5):
        session = TextSession(engine, seed)
        read(session, "the cat")
        config = SamplingConfig(top_k=top_k)
        found = join([*draw(session, 5, config), *draw(session, 0), *draw(session, 66, config)])
        assert found.encode() == generate(words, "the cat", 71, 1.0, top_k or 0, seed)
        assert (session.n_drawn, session.n_read) == (71, 73)


@pytest.mark.slow
def test_settings_of_the_nucleus_are_those_of_the_package(words, engine):
    lm = make_model(7, vocabulary=WORDS, same_length=True)
    settings = {"top_p": 0.7, "repetition_penalty": 1.3, "temperature": 0.8}
    session = TextSession(engine, 3)
    read(session, "the cat")
    expected = lm.generate("the cat", max_new_tokens=23, seed=3, **settings)
    assert join(draw(session, 23, SamplingConfig(**settings))) == expected


def test_a_text_may_be_given_in_parts(engine):
    """With equal lengths of attention the cuts do not matter."""
    whole, parts = TextSession(engine), TextSession(engine)
    assert read(whole, "the cat sat on the mat a cat") == 2
    for part in ("the cat", "sat on the mat", "", "a cat"):
        read(parts, part)
    assert parts.n_read == whole.n_read == 8
    assert draw(parts, 19) == draw(whole, 19)


def test_a_text_that_is_not_read_to_its_end_is_not_added(engine):
    session, other = TextSession(engine), TextSession(engine)
    for each in (session, other):
        read(each, "the cat")
    next(session.read(b"sat on the mat a cat"))
    assert session.n_read == 2
    assert draw(session, 7) == draw(other, 7)


def test_an_unknown_word_leaves_the_session_as_it_is(engine):
    session = TextSession(engine)
    read(session, "the cat")
    with pytest.raises(UserError, match="`text` must hold known symbols only"):
        read(session, "the dog")
    assert session.n_read == 2


def test_an_empty_text_has_no_next_token(engine):
    with pytest.raises(UserError, match="`text` must hold at least one token"):
        TextSession(engine).check_begun()


def test_bytes_that_are_no_text_are_refused(engine):
    with pytest.raises(UserError, match="`text` must be a text in Unicode"):
        next(TextSession(engine).read(b"the \xc3"))


@pytest.mark.slow
def test_characters_are_shown_when_they_are_complete(binary):
    session = TextSession(SessionEngine(binary), 1)
    read(session, "a")
    tokens = draw(session, 97, SamplingConfig(temperature=9.0))
    data = BYTES.decode_bytes([token.id for token in tokens])
    assert data == generate(binary, "a", 97, temperature=9.0, seed=1)
    complete = len(data.rstrip(b"\xc3\xe2\x82")) if data[-1] > 127 else len(data)
    assert join(tokens).startswith(data[:complete].decode(errors="replace")[:-1])
    assert {"ä", "\ufffd"} <= set(join(tokens))
    assert any(not token.text for token in tokens)


@pytest.mark.slow
def test_a_character_that_given_text_cuts_off_is_replaced(binary):
    """At the start of what is drawn next."""
    session = TextSession(SessionEngine(binary), 1)
    read(session, "a")
    config = SamplingConfig(banned=tuple(i for i in range(8) if i != 3))  # the first of two bytes
    assert join(draw(session, 1, config)) == ""
    read(session, "b")
    config = SamplingConfig(banned=tuple(range(1, 8)))
    assert join(draw(session, 2, config)) == "\ufffdaa"


def test_memory_does_not_grow_with_the_text(engine):
    ids = engine.vocabulary.encode("the cat " * 50)
    position = engine.begin()
    for start in range(0, len(ids), engine.segment_len):
        position = engine.read(position, ids[start : start + engine.segment_len])
    arrays = [*position.memory.values(), position.log_probs]
    assert sum(array.numpy().nbytes for array in arrays) + 7 == engine.session_bytes
