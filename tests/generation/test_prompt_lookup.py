import re

import numpy as np
import pytest
import tensorflow as tf
from golden_cases import load_case
from small_cached_model import SPANS, make_model
from tables import slow_after

from txl_tf.cached_model import CachedModel
from txl_tf.config import AttentionSpan, ModelConfig
from txl_tf.errors import UserError
from txl_tf.generation import prompt_lookup
from txl_tf.generation.generator import Generator
from txl_tf.generation.prompt_lookup import count_accepted, look_up
from txl_tf.generation.sampling import SamplingConfig
from txl_tf.generation.session import Session
from txl_tf.generation.token_loop import TokenLoop, take_positions
from txl_tf.model import TransformerXL
from txl_tf.release import load_model

pytestmark = pytest.mark.slow

PROMPT = [1, 2, 3, 1, 2]


def find(text, *, ngram_len=2, draft_len=3):
    draft, is_found = look_up(tf.constant([text]), ngram_len, draft_len)
    return draft[0].numpy().tolist() if is_found[0] else None


def test_what_followed_the_last_ngram_is_found_where_it_occurred_last():
    assert find([1, 2, 3, 4, 5, 1, 2, 6, 7, 8, 1, 2]) == [6, 7, 8]


def test_a_period_is_repeated():
    assert find([9, 1, 2, 1, 2]) == [1, 2, 1]
    assert find([4, 4, 4]) == [4, 4, 4]


def test_the_whole_ngram_must_be_found():
    assert find([1, 2, 3, 4, 2]) is None
    assert find([1, 2, 3, 4, 2], ngram_len=1) == [3, 4, 2]


def test_nothing_is_found_before_the_first_token():
    assert find([-1, -1, -1, -1, 3]) is None
    assert find([-1, 3, -1, -1, 3]) is None


def make_restless_model():
    """Returns a model that seldom repeats its last token."""
    config = ModelConfig(n_token=13, n_layer=2, d_model=6, d_embed=5, n_head=3, d_head=5, d_inner=7)
    model = TransformerXL(config, seed=0)
    for weight in model.trainable_variables:
        weight.assign(9 * weight)
    return model


@pytest.fixture
def every_match(monkeypatch):
    """Drafts after every token that occurred before, so that many drafts are wrong."""
    monkeypatch.setattr(prompt_lookup, "choose_ngram_len", lambda n_token: 1)


def draw(generator, prompt, draft_len, *, n_new=90, **settings):
    prompt = np.array(prompt, np.int32)
    session = Session(generator, [prompt], SamplingConfig(**settings), [5], draft_len=draft_len)
    return session.draw(n_new)[0].tolist(), session


# The sampling settings, the lengths of the drafts and whether XLA compiles.
CASES = [
    ({"temperature": 0.5, "repetition_penalty": 1.3}, (4,), False),
    ({"temperature": 1, "top_p": 0.8}, (1,), False),
    ({"temperature": 0.8, "top_k": 4}, (1, 4), False),
    ({"temperature": 0}, (4,), True),
]


@pytest.mark.parametrize(
    ("settings", "draft_lens", "is_compiled"),
    slow_after(1, CASES),
    ids=["penalty", "top_p", "top_k", "greedy"],
)
def test_drafts_do_not_change_the_text(every_match, settings, draft_lens, is_compiled):
    generator = Generator(CachedModel(make_restless_model(), SPANS[2], 5), jit_compile=is_compiled)
    expected, plain = draw(generator, PROMPT, 0, **settings)
    assert plain.n_passes == 90
    for draft_len in draft_lens:
        found, session = draw(generator, PROMPT, draft_len, **settings)
        assert found == expected
        assert session.n_passes < 90


def test_drafts_do_not_change_the_text_of_a_golden_model(every_match):
    case = load_case("lm1b")
    cached = CachedModel(load_model(case.checkpoint, case.config), AttentionSpan(8), 5)
    generator = Generator(cached, jit_compile=False)
    for temperature in (0, 1):
        expected, _ = draw(generator, [3, 1, 3], 0, n_new=40, temperature=temperature)
        found, _ = draw(generator, [3, 1, 3], 3, n_new=40, temperature=temperature)
        assert found == expected


@pytest.mark.parametrize("span", slow_after(1, [SPANS[3], SPANS[0]]), ids=str)
def test_tokens_are_kept_as_if_read_one_by_one(span):
    """Passes of three tokens, of which one, two or three are kept, around the ring buffer."""
    cached = CachedModel(make_model(), span, 1, mask_empty_memory=True)
    one, three = (TokenLoop(cached, take_positions(cached), max_new=size) for size in (1, 3))
    sampling = SamplingConfig().make_tensors(13)
    seen = tf.zeros((2, 13), bool)
    expected = one.begin(cached.initial_state(2), seen)
    state = three.begin(cached.initial_state(2), seen)
    generator = np.random.default_rng(0)
    for step in range(20):
        tokens = tf.constant(generator.integers(0, 13, (2, 3)), tf.int32)
        n_kept = 1 + step % 3
        state = three.advance(three.read_tokens(tokens, state), tokens, n_kept, sampling)
        for index in range(n_kept):
            expected = one.read(tokens[:, index], expected, sampling)
        np.testing.assert_allclose(state.hidden, expected.hidden, atol=2e-5, err_msg=step)
        np.testing.assert_array_equal(state.seen, expected.seen)
        np.testing.assert_array_equal(state.filled, expected.filled)


@pytest.mark.parametrize(
    ("new", "following", "n_accepted"),
    [
        ([1, 2, 3, 4], [2, 3, 4, 5], 4),
        ([1, 2, 3, 4], [2, 3, 9, 5], 3),
        ([1, 2, 3, 4], [9, 3, 4, 5], 1),
        ([1, 7, 3, 4], [7, 3, 4, 5], 2),
        ([7, 2, 3, 4], [2, 3, 4, 5], 1),
    ],
)
def test_a_draft_is_accepted_up_to_another_token_or_a_stop(new, following, n_accepted):
    new, following, stops = (tf.constant(ids) for ids in ([new], [following], [8, 7]))
    assert count_accepted(new, following, stops) == n_accepted


def test_a_text_ends_at_its_stop_and_continues_after_it(every_match):
    generator = Generator(CachedModel(make_restless_model(), SPANS[1], 5), jit_compile=False)
    plain, _ = draw(generator, [1, 2, 1], 0, temperature=0.7)
    texts = []
    for draft_len in (0, 4):
        settings = {"temperature": 0.7, "stops": (plain[13],)}
        tokens, session = draw(generator, [1, 2, 1], draft_len, **settings)
        assert session.ended.all()
        assert len(tokens) == plain.index(plain[13]) + 1
        session.draw(50)
        texts.append(session.added[0].tolist())
    assert texts[0] == texts[1]
    assert texts[0] == plain[: len(texts[0])]


def test_calls_of_any_size_give_one_text(every_match):
    generator = Generator(CachedModel(make_restless_model(), SPANS[2], 5), jit_compile=False)
    expected, _ = draw(generator, [1, 2, 1], 0)
    _, session = draw(generator, [1, 2, 1], 4, n_new=7)
    session.draw(40)
    session.draw(43)
    assert session.added[0].tolist() == expected


def test_several_texts_are_drawn_without_drafts(every_match):
    generator = Generator(CachedModel(make_restless_model(), SPANS[2], 5), jit_compile=False)
    prompts, sampling = [np.array(PROMPT, np.int32)] * 2, SamplingConfig(0.0)
    session = Session(generator, prompts, sampling, [5, 5], draft_len=4)
    session.draw(7)
    assert session.n_passes == 7


def test_a_draft_length_out_of_range_is_refused():
    generator = Generator(CachedModel(make_restless_model(), SPANS[1], 5))
    with pytest.raises(UserError, match=r"must be an integer from 0 to 32. Received: draft_len=33"):
        draw(generator, [1], 33)


@pytest.mark.parametrize("draft_len", [0, 4])
def test_the_values_of_a_call_are_no_constants_of_what_xla_compiles(draft_len):
    """Each call has other random numbers: as a constant they would be compiled anew."""
    generator = Generator(CachedModel(make_restless_model(), SPANS[1], 5))
    sampling = SamplingConfig()
    loop, state = generator.begin([np.array(PROMPT, np.int32)], sampling, draft_len)
    arguments = (state, tf.zeros((32, 1)), tf.constant(7), sampling.make_tensors(13))
    program = loop.draw.experimental_get_compiler_ir(*arguments)(stage="hlo")
    n_parameters = len(re.findall(r"= \S+ parameter\(", program[program.index("ENTRY") :]))
    inputs = loop.draw.get_concrete_function(*arguments).inputs
    assert n_parameters == sum(0 not in tensor.shape.as_list() for tensor in inputs)
