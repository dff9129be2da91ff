"""Weight-only quantization: kernels and tables in bfloat16 and int8."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from golden_cases import load_case
from tables import slow_after

import txl_tf
from txl_tf.generation.generator import Generator
from txl_tf.generation.session import Session
from txl_tf.generation.token_loop import TokenLoop, take_positions
from txl_tf.models.cached_model import CachedModel
from txl_tf.models.quantization import quantize
from txl_tf.release import load_model

SPAN = txl_tf.AttentionSpan(6, clamp_len=4)


def load(name):
    case = load_case(name)
    ids = tf.constant(case.golden["tokens"].astype("int32")[:, :8])
    return load_model(case.checkpoint, case.config), ids


def restore(packed):
    """Returns a model with float32 kernels that have the values of packed ones."""
    model = txl_tf.TransformerXL(packed.config, seed=0)
    for weight, kernel in zip(model.kernels, packed.kernels, strict=True):
        weight.assign(tf.convert_to_tensor(kernel))
    others = {weight.path: weight for weight in packed.weights}
    for weight in model.weights:
        if weight.path in others:
            weight.assign(others[weight.path])
    return model


def score(model, ids):
    cached = CachedModel(model, SPAN, ids.shape[1])
    return cached.score_ids(ids, cached.initial_state(len(ids)), tf.fill(len(ids), ids.shape[1]))


def test_int8_rounds_each_output_to_255_steps():
    model, _ = load("char")
    kernel = model.decoder_layers[0].attention.o_kernel
    values = np.array(kernel)
    values[:, 0], values[:, 1] = 0, np.round(np.linspace(-127, 127, len(values)))
    kernel.assign(values)
    found = np.asarray(tf.convert_to_tensor(quantize(model, "int8").kernels[3]))
    assert found.shape == values.shape
    assert (np.abs(found - values) <= np.abs(values).max(axis=0) / 254 + 1e-7).all()
    np.testing.assert_array_equal(found[:, :2], values[:, :2])
    assert len(np.unique(found[:, 2])) > 2


@pytest.mark.parametrize("name", slow_after(1, ["lm1b", "word_large", "char"]))
def test_int8_scores_as_floats_of_its_values_do(name):
    """Tables with bins and projections, too: each use of a kernel reads the same values."""
    model, ids = load(name)
    packed = quantize(model, "int8")
    found, expected = score(packed, ids)[0], score(restore(packed), ids)[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
    assert np.abs(found - score(model, ids)[0]).max() > 1e-5
    hidden, _ = packed(ids, packed.initial_memory(len(ids), 6), span=SPAN)
    plain, _ = restore(packed)(ids, packed.initial_memory(len(ids), 6), span=SPAN)
    np.testing.assert_allclose(hidden, plain, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("name", "dtype"), [("lm1b", "int8"), ("word_large", "bfloat16")])
def test_the_mean_loss_hardly_changes(name, dtype):
    model, ids = load(name)
    found, expected = score(quantize(model, dtype), ids)[0], score(model, ids)[0]
    np.testing.assert_allclose(np.mean(found), np.mean(expected), rtol=0, atol=0.03)


@pytest.mark.parametrize(
    ("name", "dtype", "n_texts", "is_compiled"),
    slow_after(
        1,
        [
            ("word_large", "int8", 5, False),
            ("word_large", "int8", 1, True),
            ("char", "int8", 5, True),
            ("char", "bfloat16", 1, False),
        ],
    ),
)
def test_the_loop_reads_what_segments_read(name, dtype, n_texts, is_compiled):
    """Row by row, or with kernels that are restored before the loop, as the batch decides."""
    model, ids = load(name)
    packed = quantize(model, dtype)
    texts = tf.stack([ids[row % len(ids)] for row in range(n_texts)])
    cached = CachedModel(packed, SPAN, 1)
    loop = TokenLoop(cached, take_positions(cached), is_compiled=is_compiled)
    n_token = packed.config.n_token
    kept = cached.initial_state(n_texts)
    state = loop.begin(kept, tf.zeros((n_texts, n_token), bool))

    @tf.function(jit_compile=is_compiled, autograph=False)
    def read(tokens, state):
        return loop.read(tokens, state, loop.make_product(state)(state))

    is_rounded = dtype == "bfloat16" or (is_compiled and n_texts == 1)  # to bfloat16
    for step in range(texts.shape[1]):
        state = read(texts[:, step], state)
        hidden, kept = cached.read(texts[:, step, None], kept)
        expected = tf.cast(hidden[:, 0], tf.float32)
        bound = 0.05 if is_rounded else 2e-5
        np.testing.assert_allclose(state.hidden, expected, rtol=0, atol=bound, err_msg=step)


@pytest.mark.slow
def test_a_few_int8_texts_are_those_drawn_alone():
    model, ids = load("char")
    generator = Generator(CachedModel(quantize(model, "int8"), SPAN, 4), jit_compile=True)

    def draw(n_texts):
        prompts = [np.asarray(ids[row % len(ids)]) for row in range(n_texts)]
        settings = {"seed": range(n_texts), "temperature": 1.0, "top_k": None}
        return np.array(Session(generator, None, prompts, **settings).draw(40))

    np.testing.assert_array_equal(draw(1), draw(4)[:1])


@pytest.mark.slow
def test_int8_is_smaller_and_exports(tmp_path):
    model, ids = load("word_large")
    packed = quantize(model, "int8")
    evaluation = txl_tf.EvalConfig(tgt_len=8, **SPAN.to_json())
    lm = txl_tf.LanguageModel(packed, None, evaluation)
    lm.export(tmp_path / "int8", mask_empty_memory=False)
    size = sum(file.stat().st_size for file in (tmp_path / "int8" / "variables").iterdir())
    n_float_bytes, n_kernel_bytes = (
        4 * sum(np.size(weight) for weight in weights) for weights in (model.weights, model.kernels)
    )
    assert n_float_bytes - size > 0.6 * n_kernel_bytes
    loaded = tf.saved_model.load(str(tmp_path / "int8"))
    lengths = tf.fill(len(ids), ids.shape[1])
    found = loaded.signatures["score_ids"](ids=ids, lengths=lengths)["nats"]
    np.testing.assert_allclose(found, score(packed, ids)[0], rtol=0, atol=1e-4)
    assert '"kernel_dtype": "int8"' in (tmp_path / "int8" / "txl_tf.json").read_text()


def test_a_quantized_model_comes_back_from_its_file(tmp_path):
    model, ids = load("char")
    packed = quantize(model, "int8")
    packed.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(score(again, ids)[0], score(packed, ids)[0])


def test_a_model_may_have_a_name():
    model, ids = load("char")
    named = txl_tf.TransformerXL(model.config, seed=0, name="student")
    for weight, original in zip(named.weights, model.weights, strict=True):
        weight.assign(original)
    found = score(quantize(named, "int8"), ids)[0]
    np.testing.assert_array_equal(found, score(quantize(model, "int8"), ids)[0])


def test_an_unknown_dtype_and_a_quantized_model_are_refused():
    model, _ = load("char")
    with pytest.raises(txl_tf.UserError, match="`dtype` must be 'bfloat16' or 'int8'"):
        quantize(model, "int4")
    with pytest.raises(txl_tf.UserError, match="the model is quantized already, to int8"):
        quantize(quantize(model, "int8"), "bfloat16")
