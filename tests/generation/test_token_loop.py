import numpy as np
import pytest
import tensorflow as tf
from golden_cases import load_case
from tables import slow_after

from txl_tf.config import AttentionSpan
from txl_tf.generation.generator import Generator
from txl_tf.generation.token_loop import TokenLoop, take_positions
from txl_tf.models.cached_model import CachedModel
from txl_tf.release import load_model

CASES = [
    ("lm1b", AttentionSpan(8, same_length=True, counts_self=True, clamp_len=4), True),
    ("char", AttentionSpan(7, clamp_len=5), False),
    ("lm1b", AttentionSpan(3), False),
    ("char", AttentionSpan(0), True),
]


@pytest.mark.parametrize(("name", "span", "is_masked"), slow_after(1, CASES), ids=str)
def test_the_ring_gives_what_segments_of_one_token_give(name, span, is_masked):
    """Longer than the ring, so that each of its places is written several times."""
    case = load_case(name)
    compare_ring(load_model(case.checkpoint, case.config), span, is_masked, case)


def test_the_ring_has_what_an_encoding_adds_to_the_inputs():
    case = load_case("char")
    model = load_model(case.checkpoint, case.config)
    model.encoding.encode_embeddings = lambda hidden: 1.5 * hidden
    model.encoding.encode_input = lambda model, index, hidden: hidden + index
    compare_ring(model, AttentionSpan(7), False, case)


def compare_ring(model, span, is_masked, case):
    cached = CachedModel(model, span, 1, mask_empty_memory=is_masked)
    loop = TokenLoop(cached, take_positions(cached))
    ids = case.golden["tokens"].astype("int32")[:, :20]
    n_rows, n_token = len(ids), case.config.n_token
    kept = cached.initial_state(n_rows)
    state = loop.begin(kept, tf.zeros((n_rows, n_token), bool))
    read = tf.function(loop.read, autograph=False)
    for step in range(ids.shape[1]):
        tokens = tf.constant(ids[:, step])
        state = read(tokens, state)
        hidden, kept = cached.read(tokens[:, None], kept)
        expected = model.log_probs(hidden)[:, 0]
        found = model.log_probs(state.hidden[:, None])[:, 0]
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5, err_msg=step)
    seen = [np.isin(np.arange(n_token), row) for row in ids]
    np.testing.assert_array_equal(state.seen, seen)


@pytest.mark.parametrize(
    ("name", "span", "is_masked"), slow_after(2, CASES[1:] + CASES[:1]), ids=str
)
def test_tokens_that_are_read_again_give_what_they_gave_when_they_were_drawn(name, span, is_masked):
    """Wherever their segments begin, and whether those of a prompt see more."""
    case = load_case(name)
    model = load_model(case.checkpoint, case.config)
    generator = Generator(
        CachedModel(model, span, 5, mask_empty_memory=is_masked), jit_compile=False
    )
    ids = case.golden["tokens"].astype("int32")[:, :20]
    prompt = generator.read(ids[:, :7])
    loop, seen = generator.loop, tf.zeros((len(ids), case.config.n_token), bool)
    read = tf.function(loop.read, autograph=False)
    drawn = loop.begin(prompt, seen)
    for token in ids[:, 7:16].T:
        drawn = read(tf.constant(token), drawn)
    again = loop.begin(generator.read(ids[:, 7:16], prompt), seen)
    for token in ids[:, 16:].T:  # also the memories are the same
        np.testing.assert_allclose(again.hidden, drawn.hidden, rtol=0, atol=2e-5)
        drawn, again = read(tf.constant(token), drawn), read(tf.constant(token), again)
    np.testing.assert_allclose(again.hidden, drawn.hidden, rtol=0, atol=2e-5)
