"""What the recurrent models compute: losses, gradients, segments, documents, dropout, precision."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy_models import compute_recurrent_nats, list_weights
from small_lstm import CONFIG, QRNN_CONFIG, STARTS, make_ids, make_model
from small_model import COMPILED

from txl_tf.config import AttentionSpan
from txl_tf.config.parameters import count_by_part
from txl_tf.errors import UserError
from txl_tf.models.architecture import make_model as make_plain_model
from txl_tf.training.step import compute_gradients

pytestmark = pytest.mark.slow

SPAN = AttentionSpan(0)
KINDS = pytest.mark.parametrize("config", [CONFIG, QRNN_CONFIG], ids=["lstm", "qrnn"])
DROPPING = dataclasses.replace(CONFIG, dropout=0.3)
LOCKED = dataclasses.replace(
    DROPPING, locked_dropout=True, input_dropout=0.4, output_dropout=0.5, word_dropout=0.2
)


def read(model, ids, tgt_len, starts=None):
    """Returns the hidden states of a text read in segments, and the last memory."""
    memory, parts = model.initial_memory(len(ids)), []
    for start in range(0, ids.shape[1], tgt_len):
        segment = slice(start, start + tgt_len)
        of_segment = None if starts is None else starts[:, segment]
        hidden, memory = model(ids[:, segment], memory, document_starts=of_segment)
        parts.append(np.asarray(hidden))
    return np.concatenate(parts, axis=1), memory


def differentiate(model, ids, starts=None, *, jit=False, memory=None):
    """Returns the mean loss of the tokens but the first, and the gradients by path."""
    compute = compute_gradients
    if jit:
        compute = tf.function(compute, jit_compile=True, autograph=False)
    memory = model.initial_memory(len(ids)) if memory is None else memory
    starts = None if starts is None else tf.constant(starts[:, :-1])
    nats, gradients, _ = compute(
        model,
        tf.constant(ids[:, :-1]),
        tf.constant(ids[:, 1:]),
        memory,
        span=SPAN,
        document_starts=starts,
    )
    paths = list(list_weights(model))
    mean = float(nats) / (ids.size - len(ids))
    return mean, dict(zip(paths, map(np.asarray, gradients), strict=True))


@KINDS
@pytest.mark.parametrize("starts", [STARTS, None], ids=["documents", "text"])
def test_the_losses_are_those_of_the_equations_in_numpy(starts, config):
    model, ids = make_model(config), make_ids()
    hidden, _ = read(model, ids, 15, starts)
    found = np.asarray(model.nll(hidden, np.roll(ids, -1, axis=1)))[:, :-1]
    weights = list_weights(model)
    for row in range(2):
        of_row = None if starts is None else starts[row]
        expected = compute_recurrent_nats(weights, config, ids[row], of_row)
        # Losses of the order of 10, float32.
        np.testing.assert_allclose(found[row], expected, rtol=0, atol=1e-5)


@KINDS
@COMPILED
def test_the_gradients_are_the_slopes_of_the_loss_in_numpy(jit, config):
    model, ids = make_model(config), make_ids()
    loss, gradients = differentiate(model, ids, STARTS, jit=jit)
    weights, rng = list_weights(model), np.random.default_rng(11)

    def compute_mean(path, change):
        changed = weights | {path: weights[path] + change}
        pairs = zip(ids, STARTS, strict=True)
        return np.mean([compute_recurrent_nats(changed, config, *pair) for pair in pairs])

    assert loss == pytest.approx(compute_mean("layer_0/bias", 0.0), rel=1e-6)
    for path, gradient in gradients.items():
        direction = rng.normal(size=gradient.shape)
        step = 1e-5 * direction
        slope = (compute_mean(path, step) - compute_mean(path, -step)) / 2e-5
        # The gradients are float32, and of the order of 1.
        assert np.sum(gradient * direction) == pytest.approx(slope, rel=1e-4, abs=1e-5), path


@KINDS
@pytest.mark.parametrize("tgt_len", [1, 7])
def test_segments_equal_one_pass(tgt_len, config):
    model, ids = make_model(config), make_ids()
    found, expected = (read(model, ids, length, STARTS) for length in (tgt_len, 15))
    for states, others in zip(*map(tf.nest.flatten, (found, expected)), strict=True):
        np.testing.assert_allclose(states, others, rtol=0, atol=1e-6)


@KINDS
def test_segments_equal_one_pass_in_half_precision(config):
    model, ids = make_model(config, dtype="mixed_bfloat16"), make_ids()
    found, expected = (read(model, ids, length)[1] for length in (4, 15))
    dtypes = [states.dtype for states in tf.nest.flatten(found)]
    assert dtypes == [states.dtype for states in tf.nest.flatten(model.initial_memory(2))]
    for (vector, cells), (other, other_cells) in zip(found, expected, strict=True):
        assert vector.dtype == model.compute_dtype
        assert cells.dtype == "float32"
        # A product that is rounded the other way moves a state by one unit in the last place.
        np.testing.assert_allclose(cells, other_cells, rtol=0, atol=0.02)
        np.testing.assert_allclose(vector, np.asarray(other, np.float32), rtol=0, atol=0.02)


@pytest.mark.parametrize(
    ("config", "dtype"), [(CONFIG, "mixed_bfloat16"), (QRNN_CONFIG, "mixed_float16")], ids=str
)
def test_half_precision_loses_no_more_than_rounding(config, dtype):
    ids = make_ids()
    loss, gradients = differentiate(make_model(config, dtype=dtype), ids, STARTS)
    expected, exact = differentiate(make_model(config), ids, STARTS)
    assert loss == pytest.approx(expected, rel=0.01)
    for path, gradient in gradients.items():
        difference = np.linalg.norm(gradient - exact[path])
        assert difference < 0.05 * np.linalg.norm(exact[path]), path


@KINDS
def test_no_gradient_flows_into_the_memory(config):
    model, ids = make_model(config), tf.constant(make_ids())
    with tf.GradientTape() as tape:
        _, memory = model(ids, model.initial_memory(2))
        total = tf.add_n([tf.reduce_sum(states) for states in tf.nest.flatten(memory)])
    weights = [variable.value for variable in model.trainable_variables]
    assert set(tape.gradient(total, weights)) == {None}


@KINDS
def test_remat_changes_no_gradient(config):
    ids = make_ids()
    dropping = dataclasses.replace(config, dropout=0.3)
    memory = read(make_model(dropping), ids, 15)[1]
    models = (make_model(dropping, remat=remat) for remat in (False, True))
    found = [differentiate(model, ids, STARTS, memory=memory) for model in models]
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    for path, gradient in found[0][1].items():
        scale = np.abs(gradient).max()
        np.testing.assert_allclose(found[1][1][path], gradient, rtol=0, atol=1e-5 * scale)


def test_dropout_masks_are_a_function_of_the_step():
    model, ids = make_model(DROPPING), make_ids()

    def train(step, stream=0):
        model.set_dropout_seed(step, stream=stream)
        return np.asarray(model(ids, model.initial_memory(2), training=True)[0])

    first = train(3)
    assert np.abs(train(4) - first).max() > 0.1
    assert np.abs(train(3, stream=1) - first).max() > 0.1
    np.testing.assert_array_equal(train(3), first)
    assert np.mean(first == 0) == pytest.approx(0.3, abs=0.1)


def test_locked_dropout_drops_the_same_outputs_at_all_positions():
    ids = make_ids()
    hidden, plain = (
        np.asarray(model(ids, model.initial_memory(2), training=True)[0])
        for model in (
            make_model(dataclasses.replace(CONFIG, locked_dropout=True, output_dropout=0.5)),
            make_model(),
        )
    )
    factors = hidden / plain
    assert set(np.round(factors[:, 0].ravel(), 5)) == {0.0, 2.0}
    np.testing.assert_allclose(factors, np.repeat(factors[:, :1], 15, axis=1), rtol=1e-5)


def test_a_call_draws_the_masks_between_two_steps():
    model = make_model(LOCKED)
    model.set_dropout_seed(5)
    model(make_ids(), model.initial_memory(2), training=True)
    drawn = np.asarray(model.seed_generator.state)
    model.set_dropout_seed(6)
    np.testing.assert_array_equal(drawn, model.seed_generator.state)


def test_rows_can_be_reset():
    model, ids = make_model(), make_ids()
    memory = read(model, ids, 15)[1]
    found = model.reset_memory(memory, np.array([False, True]))
    for states, old in zip(tf.nest.flatten(found), tf.nest.flatten(memory), strict=True):
        np.testing.assert_array_equal(states[0], old[0])
        assert not np.any(states[1])


@KINDS
def test_a_model_comes_back_from_its_file(tmp_path, config):
    dropping, ids = dataclasses.replace(config, dropout=0.3), make_ids()
    model = make_model(dropping, remat=True, dtype="mixed_bfloat16")
    model.set_dropout_seed(7)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert type(again) is type(model)
    assert again.get_config() == model.get_config()
    hidden = [
        np.asarray(m(ids, m.initial_memory(2), training=True)[0], np.float32)
        for m in (model, again)
    ]
    np.testing.assert_array_equal(*hidden)


@KINDS
def test_forget_gates_begin_open(config):
    bias = make_plain_model(config, seed=3).decoder_layers[0].bias.numpy()
    first, forget, *others = np.split(bias, bias.size // config.d_model)
    assert np.all(forget == 1)
    assert not np.any([first, *others])


@KINDS
def test_parameters_are_counted_without_a_model(config):
    model, counts = make_model(config), count_by_part(config)
    parts = [model.embedding.weights, *(layer.weights for layer in model.decoder_layers)]
    sizes = [sum(int(np.prod(weight.shape)) for weight in part) for part in parts]
    assert (counts["embedding"], counts["layers"]) == (sizes[0], sum(sizes[1:]))
    assert config.count_parameters() == model.count_params()


def test_a_memory_length_is_refused():
    with pytest.raises(UserError, match=r"`mem_len` must be 0 with model_type=lstm"):
        make_model().initial_memory(2, 7)


def test_a_span_of_attention_is_refused():
    model = make_model()
    span = dataclasses.replace(SPAN, clamp_len=5)
    with pytest.raises(UserError, match=r"`clamp_len` must be -1 with model_type=lstm, .*_len=5"):
        model(make_ids(), model.initial_memory(2), span=span)
