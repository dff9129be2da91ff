"""Every position encoding beside a reference in NumPy, and in all the ways to compute it."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy_models import trace_text
from on_jax import run_on_jax
from small_encodings import (
    CASES,
    LENGTH,
    MEMORY,
    ON_JAX,
    TEXT,
    choose_span,
    make_model,
)
from tables import slow_after

from txl_tf.config import AttentionSpan, EvalConfig
from txl_tf.errors import UserError
from txl_tf.generation.generator import Generator
from txl_tf.generation.session import Session
from txl_tf.lab.text_attention import read_attention
from txl_tf.language_model import LanguageModel
from txl_tf.models.cached_model import CachedModel
from txl_tf.models.compilation import compile_function
from txl_tf.training.step import compute_gradients

IDS, TARGETS = TEXT[:, :-1], TEXT[:, 1:]
SPANS = [MEMORY, AttentionSpan(0), AttentionSpan(9, same_length=True, clamp_len=4)]
# float32 in another order, through two layers.
TOLERANCE = 2e-5
# The richest first: with every kind of weight in the scores.
NAMES = sorted(CASES, key=lambda name: name not in ("shaw_biased", "relative_untied"))
ENCODINGS = pytest.mark.parametrize("name", slow_after(2, NAMES))
# Each span that an encoding can have.
READINGS = pytest.mark.parametrize(
    ("name", "span"),
    slow_after(
        4,
        [
            (name, span)
            for span in reversed(SPANS)
            for name in NAMES
            if choose_span(name, span) == span
        ],
    ),
    ids=str,
)
PLACES = pytest.mark.parametrize("name", ["sinusoid", "learned"])


def read(model, span, *, training=False):
    """Returns the hidden states (n, D) of the text, read in segments."""
    memory, parts = model.initial_memory(1, span.mem_len), []
    for start in range(0, 2 * LENGTH, LENGTH):
        ids = IDS[:, start : start + LENGTH]
        hidden, memory = model(ids, memory, span=span, training=training)
        parts.append(hidden)
    return tf.concat(parts, axis=1)


@READINGS
def test_hidden_states_and_losses_are_those_of_the_reference(name, span):
    model = make_model(name)
    assert model.count_params() == model.config.count_parameters()
    hidden = read(model, span)
    expected = trace_text(model, TEXT[0], span, LENGTH)
    np.testing.assert_allclose(hidden[0], expected.hidden[:-1], rtol=0, atol=TOLERANCE)
    nats = model.nll(hidden, TARGETS)[0]
    np.testing.assert_allclose(nats, expected.nats, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "jit", "remat"),
    slow_after(
        2,
        [(name, "none", True) for name in NAMES]
        + [("shaw_biased", "chains", False), ("shaw_biased", "whole", True)],
    ),
)
def test_gradients_in_training_are_those_of_the_layers(name, jit, remat):
    span, model = choose_span(name), make_model(name, remat=remat)
    memory = tuple(
        tf.random.stateless_normal(states.shape, (index, 1))
        for index, states in enumerate(model.initial_memory(1, span.mem_len))
    )
    ids, targets = tf.constant(IDS[:, :LENGTH]), tf.constant(TARGETS[:, :LENGTH])
    with tf.GradientTape() as tape:
        hidden, _ = model(ids, memory, span=span)  # without hand-written gradients
        loss = tf.reduce_mean(model.nll(hidden, targets))
    weights = model.trainable_variables
    expected = tape.gradient(loss, [weight.value for weight in weights])
    compute = compile_function(compute_gradients, jit)
    _, gradients, _ = compute(model, ids, targets, memory, span=span)
    for weight, gradient, other in zip(weights, gradients, expected, strict=True):
        other = tf.convert_to_tensor(other).numpy()
        scale = np.abs(other).max()
        assert scale > 0, weight.path
        np.testing.assert_allclose(
            gradient, other, rtol=0, atol=1e-5 * max(scale, 0.1), err_msg=weight.path
        )


@READINGS
def test_kept_keys_and_values_change_nothing(name, span):
    model = make_model(name)
    cached, parts = CachedModel(model, span, LENGTH), []
    state = cached.initial_state(1)
    for start in range(0, 2 * LENGTH, LENGTH):
        hidden, state = cached.read(IDS[:, start : start + LENGTH], state)
        parts.append(hidden)
    expected = read(model, span)
    np.testing.assert_allclose(tf.concat(parts, 1), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", slow_after(1, ["shaw", "shaw_biased"]))
def test_generated_tokens_are_the_likeliest_of_the_model(name):
    cached = CachedModel(make_model(name), MEMORY, LENGTH, mask_empty_memory=True)
    prompt, n_new = TEXT[0, :4], 20
    generator = Generator(cached, jit_compile=False)
    (drawn,) = Session(generator, None, [prompt], temperature=0.0).draw(n_new)
    hidden = []
    state = cached.initial_state(1)
    for token in [*prompt, *drawn]:  # one by one, as the generator reads them
        states, state = cached.read(np.array([[token]]), state)
        hidden.append(states)
    log_probs = cached.model.log_probs(tf.concat(hidden, axis=1))[0].numpy()
    likeliest = log_probs.argmax(axis=1)[len(prompt) - 1 : -1]
    np.testing.assert_array_equal(drawn, likeliest)


@ENCODINGS
def test_the_terms_of_the_scores_add_up(name):
    model = make_model(name)
    evaluation = EvalConfig(LENGTH, **dataclasses.asdict(choose_span(name)))
    lm = LanguageModel(model, None, evaluation)
    attention = read_attention(lm, TEXT[0], mask_empty_memory=False)
    used = {"a"} if name in ("sinusoid", "learned") else {"a", "b"}
    used |= {"shaw_biased": {"c", "d"}, "relative": {"c", "d"}}.get(name.split("_untied")[0], set())
    for term, values in attention.terms.items():
        assert (np.abs(values).max() > 0) == (term in used), term
    # The empty memory takes its share, so that the rest of the softmax is compared.
    for layer, head in np.ndindex(attention.weights.shape[:2]):
        for query in range(2, len(TEXT[0])):
            seen = attention.visible[query]
            logs = np.log(attention.weights[layer, head, query, seen])
            scores = attention.scores[layer, head, query, seen]
            np.testing.assert_allclose(logs - logs[0], scores - scores[0], rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def on_jax(tmp_path_factory):
    weights = {
        f"{name}/{variable.path}": variable
        for name in ON_JAX
        for variable in make_model(name).trainable_variables
    }
    return run_on_jax("jax_encodings.py", weights, tmp_path_factory.mktemp("jax"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_JAX)
def test_losses_and_gradients_on_jax_are_those_on_tensorflow(name, on_jax):
    model, span = make_model(name), choose_span(name)
    with tf.GradientTape() as tape:
        nats = model.nll(read(model, span, training=True), TARGETS)
        loss = tf.reduce_sum(nats)
    np.testing.assert_allclose(on_jax[f"{name}/nats"], nats, rtol=0, atol=TOLERANCE)
    gradients = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
    for weight, gradient in zip(model.trainable_variables, gradients, strict=True):
        gradient = tf.convert_to_tensor(gradient)
        found = on_jax[f"{name}/gradient/{weight.path}"]
        np.testing.assert_allclose(found, gradient, rtol=1e-4, atol=2e-4, err_msg=weight.path)


def test_a_keras_file_holds_the_encoding(tmp_path):
    name = "shaw_biased"
    model, path = make_model(name), tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert loaded.config == model.config
    span = choose_span(name)
    np.testing.assert_array_equal(read(loaded, span), read(model, span))


@PLACES
def test_an_encoding_of_places_refuses_a_memory(name):
    model = make_model(name)
    rule = f"`mem_len` must be 0 with encoding={name}"
    with pytest.raises(UserError, match=rule):
        model(IDS[:, :3], model.initial_memory(1, 2))
    with pytest.raises(UserError, match=rule):
        CachedModel(model, AttentionSpan(2), 3)
    cached = CachedModel(model, AttentionSpan(0), 3)
    with pytest.raises(UserError, match=f"generation needs a memory, .* encoding={name}"):
        Generator(cached)


def test_an_encoding_of_places_refuses_a_limit_of_distances():
    with pytest.raises(UserError, match="`clamp_len` must be -1 with encoding=sinusoid"):
        make_model("sinusoid").config.check_reading(5, AttentionSpan(0, clamp_len=4))


def test_a_segment_with_more_places_than_the_table_is_refused():
    model = make_model("learned")
    with pytest.raises(UserError, match=r"`tgt_len` must be at most `n_positions`.*tgt_len=6"):
        model(IDS[:, :6], model.initial_memory(1, 0))
    with pytest.raises(UserError, match=r"`tgt_len` must be at most `n_positions`.*tgt_len=6"):
        CachedModel(model, AttentionSpan(0), 6)
