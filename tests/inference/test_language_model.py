import math

import numpy as np
import pytest
import tensorflow as tf
from golden_cases import EVALUATIONS, load_case, parse_evaluation
from small_language_model import WORDS, make_model

import txl_tf
from txl_tf.config import EvalConfig
from txl_tf.data import Vocabulary
from txl_tf.errors import UserError
from txl_tf.release import load_model


@pytest.fixture(scope="module")
def lm():
    return make_model(7, vocabulary=WORDS)


@pytest.mark.parametrize(("name", "key"), EVALUATIONS)
def test_scores_are_those_of_the_2019_code(name, key):
    """Each row of the golden text is scored as a text of its own."""
    case = load_case(name)
    tgt_len, span = parse_evaluation(key)
    evaluation = EvalConfig(tgt_len=tgt_len, **span.to_json())
    lm = txl_tf.LanguageModel(load_model(case.checkpoint, case.config), None, evaluation)
    scores = lm.score(case.golden["tokens"], mask_empty_memory=False)
    for score, expected in zip(scores, case.golden[key], strict=True):
        np.testing.assert_allclose(score.nats[: len(expected)], expected, rtol=0, atol=2e-5)


def test_a_score_adds_up(lm):
    (score,) = lm.score(["the cat sat on the mat\na cat"])
    assert score.tokens == len(score.ids) - 1 == 8
    assert score.total_nats == pytest.approx(sum(score.nats.tolist()))
    assert score.bits_per_token == pytest.approx(score.total_nats / 8 / math.log(2))
    assert score.perplexity == pytest.approx(2**score.bits_per_token)
    assert score.bpc is None  # words


def test_the_likeliest_tokens_are_those_of_one_pass():
    """Greedy: each new token is the likeliest after all before it, read without memory."""
    lm = make_model(13, mem_len=37, tgt_len=5, same_length=True)
    prompt = np.array([2, 7, 1, 8, 2, 8, 1], np.int32)
    ids = np.concatenate([prompt, lm.generate(prompt, max_new_tokens=17, temperature=0)])
    memory = lm.model.initial_memory(1, 37)
    hidden, _ = lm.model(tf.constant(ids[None]), memory, span=lm.span)
    likeliest = lm.model.log_probs(hidden).numpy()[0].argmax(-1)
    np.testing.assert_array_equal(ids[len(prompt) :], likeliest[len(prompt) - 1 : -1])


def test_equal_seeds_give_equal_texts(lm):
    texts = [lm.generate("the cat", max_new_tokens=37, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_a_text_does_not_depend_on_those_beside_it(lm):
    """Prompts of other lengths, some longer than a segment and than the memory."""
    prompts = ["the", "a cat sat on the mat", "on", " ".join(["sat on a mat"] * 5), "the"]
    together = lm.generate(prompts, max_new_tokens=23, seed=[3, 4, 5, 6, 3])
    for prompt, seed, text in zip(prompts, [3, 4, 5, 6, 3], together, strict=True):
        assert lm.generate(prompt, max_new_tokens=23, seed=seed) == text
    assert together[0] == together[4]


def test_a_session_continues_as_if_it_had_never_stopped(lm):
    session = lm.start(["the cat"], seed=1)
    for count in (1, 35, 4):
        session.draw(count)
    assert session.added == [lm.generate("the cat", max_new_tokens=40, seed=1)]


def test_a_session_returns_what_a_call_added(lm):
    session = lm.start(["the cat", np.array([1, 2])], seed=1)
    first, second = session.draw(5), session.draw(35)
    assert first[0] + second[0] == session.added[0]
    np.testing.assert_array_equal(np.concatenate([first[1], second[1]]), session.added[1])


def test_a_character_that_becomes_whole_is_returned_by_the_call_that_ends_it():
    lm = make_model(3, vocabulary=Vocabulary("byte", ("195", "169", "97")))
    session = lm.start("a", banned=["a"], seed=1, temperature=0.1)
    pieces = [session.draw(1)[0] for _ in range(7)]
    whole = session.added[0]
    assert whole == lm.generate("a", banned=["a"], seed=1, temperature=0.1, max_new_tokens=7)
    shown = ""
    for piece in pieces:
        shown = (shown if whole.startswith(shown) else shown[:-1]) + piece
    assert shown == whole


def test_a_session_tells_how_much_it_read_and_drew(lm):
    session = lm.start("the cat")
    assert repr(session) == "<Session: 1 text, 2 tokens read, 0 drawn>"
    session = lm.start(["the cat", "a"], stops=WORDS.symbols)
    session.draw(5)
    assert repr(session) == "<Session: 2 texts, 3 tokens read, 2 drawn, 2 ended>"


def test_a_stream_of_a_session_begins_where_it_stood(lm):
    session = lm.start("the cat", seed=1)
    (first,) = session.draw(5)
    assert first + "".join(session.stream(35)) == session.added[0]


def test_a_model_tells_what_it_is(tmp_path):
    make_model(7, vocabulary=WORDS, same_length=True, clamp_len=13).save(tmp_path)
    assert repr(txl_tf.load(tmp_path)) == (
        f"<LanguageModel: run '{tmp_path}', step 0, 1,221 parameters, 2 layers, vocabulary of "
        "7 words, segments of 5, memory of 11, same_length, clamp_len 13>"
    )
    assert "layers, 7 ids without vocabulary, segments of 5, memory of 11>" in repr(make_model(7))


def test_a_model_is_quantized_in_place(tmp_path):
    lm = make_model(7, vocabulary=WORDS)
    text = "the cat sat on the mat"
    (before,) = lm.score([text])
    lm.generate("the", max_new_tokens=2)
    lm.save(tmp_path / "run")
    lm.quantize("int8")
    assert "kernels in int8" in repr(lm)
    (after,) = lm.score([text])
    assert 0 < abs(after.total_nats - before.total_nats) < 0.5
    assert lm.generate(text, max_new_tokens=3, temperature=0)
    loaded = txl_tf.load(tmp_path / "run", precision="int8")
    np.testing.assert_array_equal(loaded.score([text])[0].nats, after.nats)
    with pytest.raises(UserError, match="a quantized model cannot be saved as a run"):
        lm.save(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_precision_must_be_known(tmp_path):
    make_model(7).save(tmp_path)
    with pytest.raises(UserError, match=r"`precision` must be one of 'float32', .*: 'int4'"):
        txl_tf.load(tmp_path, precision="int4")


def test_a_stream_is_of_text():
    with pytest.raises(UserError, match=r"`prompt` must be a text. Received: ndarray"):
        make_model(7).stream(np.array([1, 2]))


def test_a_session_does_not_go_back():
    session = make_model(7).start([np.array([1, 2])], seed=np.int64(3))
    with pytest.raises(UserError, match=r"`max_new_tokens` must be an integer >= 0\."):
        session.draw(-1)


def test_a_stream_is_the_text_in_pieces(lm):
    pieces = list(lm.stream("the cat", max_new_tokens=70, seed=1))
    assert len(pieces) > 2
    assert "".join(pieces) == lm.generate("the cat", max_new_tokens=70, seed=1)


def test_a_stop_ends_a_text(lm):
    whole, other = lm.generate(["the cat", "a"], max_new_tokens=50, temperature=9)
    stopped, same = lm.generate(["the cat", "a"], max_new_tokens=50, temperature=9, stops=["mat"])
    assert whole.startswith(stopped)
    assert stopped.endswith("mat")
    assert stopped.count("mat") == 1
    assert other.startswith(same)
    assert same.endswith("mat")


def test_what_is_banned_does_not_come(lm):
    assert "mat" in lm.generate("the cat", max_new_tokens=60, temperature=9)
    assert "mat" not in lm.generate("the cat", max_new_tokens=60, temperature=9, banned=["mat"])


def test_the_unknown_word_is_banned_unless_asked_for():
    words = Vocabulary("word", ("<eos>", "the", "<unk>"), line_end="<eos>", unknown="<unk>")
    lm = make_model(3, vocabulary=words)
    assert "<unk>" not in lm.generate("the", max_new_tokens=60, temperature=9)
    assert "<unk>" in lm.generate("the", max_new_tokens=60, temperature=9, banned=[])


def test_a_penalty_makes_repetition_rarer():
    lm = make_model(13)
    prompt = np.array([5], np.int32)
    new = [
        len(set(lm.generate(prompt, max_new_tokens=12, repetition_penalty=p, temperature=0)))
        for p in (1.0, 50.0)
    ]
    assert new[0] < new[1]


def test_a_text_continues_with_the_space_between_two_words(lm):
    text = "the cat" + lm.generate("the cat", max_new_tokens=13, top_k=3)
    assert len(WORDS.encode(text)) == 15


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": ""}, r"`prompt` must hold at least one token"),
        ({"temperature": -1.0}, r"`temperature` must be 0 or more"),
        ({"temperature": math.nan}, r"`temperature` must be 0 or more"),
        ({"top_k": 0}, r"`top_k` must be positive"),
        ({"top_p": 0.0}, r"`top_p` must be in \(0, 1\]"),
        ({"repetition_penalty": 0.5}, r"`repetition_penalty` must be 1 or more"),
        ({"banned": ["dog"]}, r"'dog' is neither a symbol of the vocabulary nor"),
        ({"banned": WORDS.symbols}, r"`banned` must leave at least one token. Received: all 7"),
        ({"prompt": ["the", ""]}, r"`prompt` must hold at least one token"),
        ({"prompt": ["the", "a"], "seed": [1]}, r"`seed` must be one seed, or 2. Received: 1"),
        ({"seed": -1}, r"`seed` must be from 0 to 9,223,372,036,854,775,807. Received: seed=-1"),
        ({"seed": 2**63}, r"`seed` must be from 0 to .* Received: seed=9223372036854775808"),
        ({"max_new_tokens": 3.5}, r"`max_new_tokens` must be .* Received: max_new_tokens=3\.5"),
        ({"max_new_tokens": -1}, r"`max_new_tokens` must be an integer >= 0"),
        ({"prompt": "the dog"}, r"1 unknown \('dog'\), the first at offset 1"),
        ({"prompt": np.array([7])}, r"ids must be at least 0 and below 7. Received: id 7"),
        ({"prompt": np.array([[1]])}, r"a text must be a `str` or a one-dimensional array"),
    ],
)
def test_bad_arguments_of_generate_are_refused(lm, arguments, message):
    with pytest.raises(UserError, match=message):
        lm.generate(**{"prompt": "the"} | arguments)


def test_texts_need_a_vocabulary():
    with pytest.raises(UserError, match=r"the run has no vocabulary: pass ids, not text"):
        make_model(7).score(["the cat"])
