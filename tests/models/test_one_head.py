"""A model with one head, on every path: TensorFlow's broadcasting products fail there on CPUs."""

import numpy as np
import pytest
import tensorflow as tf
from small_model import COMPILED, LOSS_TOLERANCE, VOCABULARY, make_config, make_model
from tables import slow_after

from txl_tf.config import AttentionSpan, EvalConfig
from txl_tf.lab.verify import reference
from txl_tf.language_model import LanguageModel
from txl_tf.models.cached_model import CachedModel
from txl_tf.release.names import SCOPE, list_entries

# Rows B, segment T, head H and S keys for which (B, 1, T, H) times (1, S, H) came out wrong.
BATCH, TGT_LEN, MEM_LEN, D_HEAD, N_SEGMENTS = 4, 16, 17, 8, 2
SHAPE = {"n_head": 1, "d_head": D_HEAD}
SPAN = AttentionSpan(MEM_LEN)
IDS = np.random.default_rng(5).integers(
    VOCABULARY, size=(BATCH, N_SEGMENTS * TGT_LEN + 1), dtype="int32"
)


@pytest.fixture(scope="module")
def model():
    return make_model(**SHAPE)


@pytest.fixture(scope="module")
def expected(model):
    """The losses of the reference in NumPy, from an empty memory that is attended to."""
    variables = {SCOPE + entry.source: entry.target.numpy() for entry in list_entries(model)}
    config = make_config(**SHAPE)
    memory, parts = reference.make_empty_memory(config, BATCH, MEM_LEN), []
    for ids, targets in cut():
        trace = reference.trace_segment(variables, config, ids, targets, memory, SPAN)
        memory = trace.new_memory
        parts.append(trace.nll)
    return np.concatenate(parts, axis=1)


def cut():
    """Yields ids and targets of each segment, (B, T) int32."""
    for start in range(0, N_SEGMENTS * TGT_LEN, TGT_LEN):
        part = IDS[:, start : start + TGT_LEN + 1]
        yield part[:, :-1], part[:, 1:]


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=LOSS_TOLERANCE)


@pytest.mark.parametrize(
    ("training", "jit"), slow_after(2, [(True, False), (False, False), (True, True)])
)
def test_the_model_has_the_losses_of_the_reference(model, expected, training, jit):
    @tf.function(jit_compile=jit)
    def read(ids, targets, memory):
        hidden, memory = model(ids, memory, span=SPAN, training=training)
        return model.nll(hidden, targets), memory

    memory, parts = model.initial_memory(BATCH, MEM_LEN), []
    for ids, targets in cut():
        nll, memory = read(ids, targets, memory)
        parts.append(nll)
    assert_close(np.concatenate(parts, axis=1), expected)


@COMPILED
def test_the_cached_model_has_the_losses_of_the_reference(model, expected, jit):
    cached = CachedModel(model, SPAN, TGT_LEN)
    read = tf.function(cached.read, jit_compile=jit, autograph=False)
    state, parts = cached.initial_state(BATCH), []
    for ids, targets in cut():
        hidden, state = read(tf.constant(ids), state)
        parts.append(model.nll(hidden, targets))
    assert_close(np.concatenate(parts, axis=1), expected)


@pytest.mark.slow
def test_generation_takes_the_likeliest_tokens_of_the_reference(model):
    """Greedy, so that each token is the likeliest that the reference finds after those before."""
    lm = LanguageModel(model, None, EvalConfig(TGT_LEN, MEM_LEN, same_length=True))
    prompt, n_new = IDS[0, :5], 11
    added = lm.generate(prompt, max_new_tokens=n_new, temperature=0, mask_empty_memory=False)
    variables = {SCOPE + entry.source: entry.target.numpy() for entry in list_entries(model)}
    config = make_config(**SHAPE)
    text = np.concatenate([prompt, added])[None]
    trace = reference.trace_segment(
        variables,
        config,
        text[:, :-1],
        text[:, 1:],
        reference.make_empty_memory(config, 1, MEM_LEN),
        AttentionSpan(MEM_LEN, same_length=True),
    )
    np.testing.assert_array_equal(trace.head[0, len(prompt) - 1 :].argmax(axis=-1), added)
