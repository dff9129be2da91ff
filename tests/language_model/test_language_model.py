import copy
import math
import pickle

import numpy as np
import pytest
from small_commands import write_words
from small_language_model import WORDS, make_model
from tables import slow_after

import txl_tf
from txl_tf.data import Vocabulary, open_records
from txl_tf.errors import UserError
from txl_tf.lab.text_attention import read_attention


@pytest.fixture(scope="module")
def lm():
    return make_model(7, vocabulary=WORDS)


def test_a_score_adds_up(lm):
    (score,) = lm.score(["the cat sat on the mat\na cat"], jit="none")
    assert score.tokens == len(score.ids) - 1 == 8
    assert score.total_nats == pytest.approx(sum(score.nats.tolist()))
    assert score.bits_per_token == pytest.approx(score.total_nats / 8 / math.log(2))
    assert score.perplexity == pytest.approx(2**score.bits_per_token)
    assert score.bpc is None  # words


def test_equal_seeds_give_equal_texts(lm):
    texts = [lm.generate("the cat", max_new_tokens=37, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.slow
def test_a_text_does_not_depend_on_those_beside_it(lm):
    """Prompts of other lengths, some longer than a segment and than the memory."""
    prompts = ["the", "a cat sat on the mat", "on", " ".join(["sat on a mat"] * 5), "the"]
    together = lm.generate(prompts, max_new_tokens=23, seed=[3, 4, 5, 6, 3])
    for prompt, seed, text in zip(prompts, [3, 4, 5, 6, 3], together, strict=True):
        assert lm.generate(prompt, max_new_tokens=23, seed=seed) == text
    assert together[0] == together[4]


def test_a_session_returns_what_calls_added_as_one_call_does(lm):
    session = lm.start(["the cat", np.array([1, 2])], seed=1)
    first, second = session.draw(5), session.draw(35)
    assert first[0] + second[0] == session.added[0]
    np.testing.assert_array_equal(np.concatenate([first[1], second[1]]), session.added[1])
    assert session.added[0] == lm.generate("the cat", max_new_tokens=40, seed=1)


def test_a_stream_is_the_rest_of_the_text_in_pieces(lm):
    session = lm.start("the cat", seed=1)
    pieces = [*session.draw(5), *session.stream(65)]
    assert len(pieces) > 3
    assert "".join(pieces) == lm.generate("the cat", max_new_tokens=70, seed=1)


def test_a_model_tells_what_it_is(tmp_path):
    make_model(7, vocabulary=WORDS, same_length=True, clamp_len=13).save(tmp_path)
    assert repr(txl_tf.load(tmp_path)) == (
        f"<LanguageModel: run '{tmp_path}', step 0, 1,221 parameters, 2 layers, vocabulary of "
        "7 words, segments of 5, memory of 11, same_length, clamp_len 13>"
    )
    assert "layers, 7 ids without vocabulary, segments of 5, memory of 11>" in repr(make_model(7))


@pytest.mark.slow
def test_a_model_is_quantized_in_place(tmp_path):
    lm = make_model(7, vocabulary=WORDS)
    text = "the cat sat on the mat"
    (before,) = lm.score([text], jit="none")
    lm.generate("the", max_new_tokens=2)
    lm.save(tmp_path / "run")
    lm.quantize("int8")
    assert "kernels in int8" in repr(lm)
    (after,) = lm.score([text], jit="none")
    assert 0 < abs(after.total_nats - before.total_nats) < 0.5
    assert lm.generate("the", max_new_tokens=2, temperature=0)
    loaded = txl_tf.load(tmp_path / "run", precision="int8")
    np.testing.assert_array_equal(loaded.score([text], jit="none")[0].nats, after.nats)
    with pytest.raises(UserError, match="a quantized model cannot be saved as a run"):
        lm.save(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_another_model_may_take_the_place_of_a_model():
    def use(lm):
        (score,) = lm.score(["the cat sat on the mat"], jit="none")
        return score.total_nats, lm.generate("the", max_new_tokens=30)

    lm, other = make_model(7, vocabulary=WORDS), make_model(7, vocabulary=WORDS)
    for weight in other.model.trainable_variables:
        weight.assign(weight / 3)
    before, expected = use(lm), use(other)
    lm.model = other.model
    assert use(lm) == expected
    assert all(old != new for old, new in zip(before, expected, strict=True))


def test_a_stop_ends_a_text(lm):
    whole, other = lm.generate(["the cat", "a"], max_new_tokens=50, temperature=9)
    stopped, same = lm.generate(["the cat", "a"], max_new_tokens=50, temperature=9, stops=["mat"])
    assert whole.startswith(stopped)
    assert stopped.endswith("mat")
    assert stopped.count("mat") == 1
    assert other.startswith(same)
    assert same.endswith("mat")


def test_the_unknown_word_is_banned_unless_others_are():
    words = Vocabulary("word", ("<eos>", "the", "<unk>"), line_end="<eos>", unknown="<unk>")
    lm = make_model(3, vocabulary=words)
    assert "<unk>" not in lm.generate("the", max_new_tokens=60, temperature=9)
    text = lm.generate("the", max_new_tokens=60, temperature=9, banned=["the"])
    assert "<unk>" in text
    assert "the" not in text


def test_a_text_continues_with_the_space_between_two_words(lm):
    text = "the cat" + lm.generate("the cat", max_new_tokens=13, top_k=3)
    assert len(WORDS.encode(text)) == 15


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": ""}, r"`prompt` must hold at least one token"),
        ({"prompt": {"the": 1}}, r"a text must be a `str` or a one-dimensional array"),
        ({"temperature": math.nan}, r"`temperature` must be a number of 0 or more"),
        ({"temperature": "hot"}, r"`temperature` must be a number .* Received: temperature='hot'"),
        ({"top_k": -1}, r"`top_k` must be an integer of 0, for all tokens, or more"),
        ({"top_k": 4.0}, r"`top_k` must be an integer of 0, .* Received: top_k=4.0"),
        ({"top_p": "most"}, r"`top_p` must be a number in \(0, 1\]. Received: top_p='most'"),
        ({"stops": {"the": 1}}, r"`stops` must be a list. Received: {'the': 1}"),
        ({"stops": [3]}, r"`stops` must be texts of at least one character. Received: 3"),
        ({"banned": 3}, r"`banned` must be a list. Received: 3"),
        ({"repetition_penalty": 0.5}, r"`repetition_penalty` must be a number of 1"),
        ({"banned": ["dog"]}, r"'dog' is neither a symbol of the vocabulary nor"),
        ({"banned": WORDS.symbols}, r"`banned` must leave at least one token. Received: all 7"),
        ({"prompt": ["the", "a"], "seed": [1]}, r"`seed` must be one seed, or 2. Received: 1"),
        ({"seed": 2**63}, r"`seed` must be an integer from 0 to .*: seed=9223372036854775808"),
        ({"seed": 1.0}, r"`seed` must be an integer from 0 to .* Received: seed=1.0"),
        ({"max_new_tokens": -1}, r"`max_new_tokens` must be an integer >= 0"),
        ({"prompt": "the dog"}, r"1 unknown \('dog'\), the first at offset 1"),
        ({"prompt": np.array([7])}, r"ids must be at least 0 and below 7. Received: id 7"),
    ],
)
def test_bad_arguments_of_generate_are_refused(lm, arguments, message):
    with pytest.raises(UserError, match=message):
        lm.generate(**{"prompt": "the"} | arguments)


def test_a_top_k_of_0_is_all_tokens(lm):
    texts = [lm.generate("the", max_new_tokens=17, top_k=top_k) for top_k in (0, None)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "make_copy", slow_after(1, [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy])
)
def test_a_copy_of_a_used_model_gives_the_same(lm, make_copy):
    text, (score,) = lm.generate("the", max_new_tokens=7), lm.score(["the cat"], jit="none")
    copied = make_copy(lm)
    assert copied.score(["the cat"], jit="none")[0].total_nats == score.total_nats
    assert copied.generate("the", max_new_tokens=7) == text


@pytest.mark.parametrize("path", [3, None, ["run"]])
def test_a_path_that_is_none_is_refused(path):
    with pytest.raises(UserError, match=r"`path` must be the path of a run. Received: "):
        txl_tf.load(path)


def test_texts_need_a_vocabulary():
    with pytest.raises(UserError, match=r"the run has no vocabulary: pass ids, not text"):
        make_model(7).score(["the cat"])


def test_bytes_are_a_text(lm):
    text = lm.generate("the cat", max_new_tokens=5)
    assert lm.generate(b"the cat", max_new_tokens=5) == text
    assert lm.generate([b"the cat"], max_new_tokens=5) == [text]


def test_a_mode_of_compilation_that_there_is_none_of_is_refused(lm):
    with pytest.raises(UserError, match=r"`jit` must be one of auto, .* Received: jit='all'"):
        lm.score(["the cat"], jit="all")


def test_heads_may_be_chosen_by_numbers_of_numpy(lm):
    chosen = read_attention(lm, "the cat", layers=np.int64(0), heads=np.array([0, 1]))
    assert chosen.layers == (0,)


def test_records_of_another_vocabulary_are_refused_before_any_is_read(lm, tmp_path):
    write_words(tmp_path, n_token=25, test=60)
    with pytest.raises(UserError, match="has another vocabulary than the model"):
        lm.make_evaluator(open_records(tmp_path))


def test_a_prefix_without_tokens_and_an_empty_folder_are_refused(lm):
    with pytest.raises(UserError, match=r"`prefix` must have at least one token. Received: ' '"):
        lm.score(["the cat"], prefix=" ")
    with pytest.raises(UserError, match="`data_dir` must not be empty"):
        lm.evaluate(data_dir="")
