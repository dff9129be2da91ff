"""What the model computes: memory, causality, spans, dropout, precision."""

import itertools

import numpy as np
import pytest
import small_lstm
import tensorflow as tf
from small_model import (
    BATCH,
    LENGTH,
    SAME,
    VOCABULARY,
    make_config,
    make_ids,
    make_model,
    read,
)
from tables import slow_after

from txl_tf.config import AttentionSpan
from txl_tf.errors import UserError
from txl_tf.layers import dropout
from txl_tf.layers.fused import fused_attention
from txl_tf.models.transformer_xl import TransformerXL

LOCKED = {
    "locked_dropout": True,
    "word_dropout": 0.3,
    "input_dropout": 0.6,
    "qkv_dropout": 0.2,
    "output_dropout": 0.4,
}


# Shorter than the segment, between segment and text, as long as the text.
@pytest.mark.parametrize("mem_len", [3, 7, 15])
def test_segments_with_memory_equal_one_long_pass(mem_len):
    model, ids = make_model(), make_ids(15)
    span = AttentionSpan(mem_len, same_length=True)
    np.testing.assert_allclose(read(model, ids, 5, span), read(model, ids, 15, span), **SAME)


@pytest.mark.parametrize("same_length", [False, True])
def test_a_future_token_changes_no_earlier_loss(same_length):
    model, ids = make_model(), make_ids(11)
    span, targets = AttentionSpan(3, same_length=same_length), make_ids(11)[:, ::-1]
    changed = ids.copy()
    changed[:, 4] = (changed[:, 4] + 1) % VOCABULARY
    before, after = (
        np.asarray(model.nll(model(tokens, model.initial_memory(BATCH, 3), span=span)[0], targets))
        for tokens in (ids, changed)
    )
    # Not bit for bit: a product may sum a row in an order that depends on where it lies.
    np.testing.assert_allclose(before[:, :4], after[:, :4], rtol=0, atol=1e-5)
    assert np.all(np.abs(before[:, 4] - after[:, 4]) > 1e-3)


@pytest.mark.parametrize("counts_self", [False, True])
def test_same_length_sees_the_memory_and_its_own_key_unless_counted(counts_self):
    model, ids = make_model(n_layer=1), make_ids(11)
    span, seen = AttentionSpan(3, same_length=True, counts_self=counts_self), []
    before = read(model, ids, 11, span)
    for position in range(11):
        changed = ids.copy()
        changed[:, position] = (changed[:, position] + 1) % VOCABULARY
        seen.append(np.abs(read(model, changed, 11, span) - before).max(axis=(0, 2)) > 1e-4)
    key, query = np.indices((11, 11))
    np.testing.assert_array_equal(seen, (key <= query) & (query <= key + 3 - counts_self))


def test_the_span_defaults_to_all_of_the_memory():
    model, ids = make_model(), make_ids()
    memory = model(ids, model.initial_memory(BATCH, 7))[1]
    hidden, _ = model(ids, memory)
    explicit, _ = model(ids, memory, span=AttentionSpan(7, same_length=False, clamp_len=-1))
    np.testing.assert_array_equal(hidden, explicit)


def test_a_memory_of_another_length_than_the_span_is_an_error():
    model = make_model()
    with pytest.raises(ValueError, match=r"span.mem_len=11, a memory of 7"):
        model(make_ids(), model.initial_memory(BATCH, 7), span=AttentionSpan(11))


def test_no_gradient_flows_into_the_memory():
    model, ids = make_model(), make_ids()
    memory = model(ids, model.initial_memory(BATCH, 7))[1]
    with tf.GradientTape() as tape:
        tape.watch(memory)
        hidden, _ = model(ids, memory)
    assert tape.gradient(hidden, list(memory)) == [None] * 3


def test_resetting_empties_the_rows_asked_and_no_others():
    model, ids = make_model(), make_ids(batch=3)
    memory = model(ids, model.initial_memory(3, 7))[1]
    reset = model.reset_memory(memory, np.array([False, True, False]))
    fresh = model.initial_memory(3, 7)
    for old, new, empty in zip(memory, reset, fresh, strict=True):
        np.testing.assert_array_equal(new[1], empty[1])
        np.testing.assert_array_equal(tf.gather(new, [0, 2]), tf.gather(old, [0, 2]))
        assert np.abs(old[1]).max() > 0


def test_nothing_is_dropped_outside_training():
    dropping, ids = make_model(dropout=0.5, dropatt=0.5, **LOCKED), make_ids()
    hidden, _ = dropping(ids, dropping.initial_memory(BATCH, 7), training=False)
    plain = make_model()
    np.testing.assert_array_equal(hidden, plain(ids, plain.initial_memory(BATCH, 7))[0])


@pytest.fixture
def dropped(monkeypatch):
    """The shapes and rates of the masks that are drawn, in their order."""
    masks, make_keep_mask = [], dropout.make_keep_mask

    def record(shape, rate, seed):
        masks.append((tuple(shape), rate))
        return make_keep_mask(shape, rate, seed)

    for module in (dropout, fused_attention):
        monkeypatch.setattr(module, "make_keep_mask", record)
    return masks


def test_dropout_falls_where_the_2019_code_has_it(dropped):
    model = make_model(dropout=0.25, dropatt=0.5)
    model(make_ids(), model.initial_memory(BATCH, 7), training=True)
    hidden = ((BATCH, LENGTH, 10), 0.25)
    weights, inner = ((BATCH, 3, LENGTH, 12), 0.5), ((BATCH, LENGTH, 17), 0.25)
    positions = ((12, 10), 0.25)  # once, for all layers
    assert dropped == [positions, hidden, *[weights, hidden, inner, hidden] * 3, hidden]


def test_locked_dropout_has_one_mask_for_all_positions_in_each_place(dropped):
    model = make_model(dropout=0.25, dropatt=0.5, **LOCKED)
    model(make_ids(), model.initial_memory(BATCH, 7), training=True)
    heads, weights = ((BATCH, 1, 3 * 3 * 7), 0.2), ((BATCH, 3, LENGTH, 12), 0.5)
    hidden, inner = ((BATCH, 1, 10), 0.25), ((BATCH, 1, 17), 0.25)
    of_input = [((1, 10), 0.6), ((BATCH, 1, 10), 0.6)]  # the positions, then the embeddings
    of_layer = [heads, weights, hidden, inner, hidden]
    assert dropped == [*of_input, *of_layer * 3, ((BATCH, 1, 10), 0.4)]


def test_the_memory_of_the_first_layer_is_the_embedding_after_dropout():
    model, ids = make_model(dropout=0.5), make_ids()
    _, memory = model(ids, model.initial_memory(BATCH, LENGTH), training=True)
    embedded, kept = np.asarray(model.embedding(ids)), np.asarray(memory[0])
    assert 0 < np.mean(kept == 0) < 1
    np.testing.assert_allclose(kept[kept != 0], 2 * embedded[kept != 0], rtol=1e-6)


def test_a_dropped_word_is_dropped_everywhere_but_in_the_softmax():
    model, ids = make_model(word_dropout=0.5), make_ids()
    _, memory = model(ids, model.initial_memory(BATCH, LENGTH), training=True)
    is_dropped = (np.asarray(memory[0]) == 0).all(axis=-1)
    words = set(ids[is_dropped])
    assert words
    assert words.isdisjoint(ids[~is_dropped])
    ratio = np.asarray(memory[0])[~is_dropped] / np.asarray(model.embedding(ids))[~is_dropped]
    np.testing.assert_allclose(ratio, 2, rtol=1e-6)
    hidden = tf.ones((1, 1, 10))
    np.testing.assert_array_equal(model.log_probs(hidden), make_model().log_probs(hidden))


@pytest.mark.parametrize(
    ("more", "count", "remat"), [({}, 4 * 3 + 3, False), (LOCKED, 5 * 3 + 4, True)]
)
def test_a_step_draws_as_many_masks_as_its_seed_reserves(more, count, remat):
    model = make_model(dropout=0.25, dropatt=0.5, remat=remat, **more)
    model.set_dropout_seed(5)
    model(make_ids(), model.initial_memory(BATCH, 7), training=True)
    used = np.asarray(model.seed_generator.state)
    model.set_dropout_seed(6)
    np.testing.assert_array_equal(used, model.seed_generator.state)
    assert used[1] == 6 * count  # what the step drew, and the five before it


def test_dropout_masks_follow_step_and_stream_alone():
    model, ids = make_model(dropout=0.25, dropatt=0.25), make_ids()

    def run(step, stream):
        model.set_dropout_seed(step, stream=stream)
        return np.asarray(model(ids, model.initial_memory(BATCH, 7), training=True)[0])

    masks = [run(step, stream) for step in (0, 1) for stream in (0, 1)]
    np.testing.assert_array_equal(run(1, 1), masks[3])
    for first, second in itertools.combinations(masks, 2):
        assert np.abs(first - second).max() > 1e-2


# float16 with bins is not compiled: XLA takes minutes over it on some CPUs.
@pytest.mark.parametrize(
    ("precision", "cutoffs", "jit"),
    slow_after(
        1,
        [
            ("bfloat16", (5, 12), False),
            ("bfloat16", (5, 12), True),
            ("float16", (), True),
            ("float16", (5, 12), False),
        ],
    ),
)
def test_half_precision_loses_no_more_than_rounding(precision, cutoffs, jit):
    ids, targets, runs = make_ids(), make_ids()[:, ::-1], {}
    for dtype in ("float32", f"mixed_{precision}"):
        # A wide hidden state would make losses of 50 nats, where 2 % is no bound.
        model = TransformerXL(make_config(cutoffs=cutoffs, init_std=0.3), seed=1, dtype=dtype)

        @tf.function(jit_compile=jit)
        def score(ids, targets, model=model):
            span = AttentionSpan(7, same_length=True)  # masks keys on both sides
            hidden, memory = model(ids, model.initial_memory(BATCH, 7), span=span)
            return hidden, memory, model.nll(hidden, targets), model.log_probs(hidden)

        runs[dtype] = score(tf.constant(ids), tf.constant(targets))
    hidden, memory, nll, log_probs = runs[f"mixed_{precision}"]
    assert {hidden.dtype, *(states.dtype for states in memory)} == {tf.as_dtype(precision)}
    assert {nll.dtype, log_probs.dtype} == {tf.float32}
    # bfloat16 rounds to 3 digits, float16 to 4; three layers, and sums of some ten terms.
    expected = runs["float32"][2]
    assert np.mean(np.abs(nll - expected)) < 0.02 * np.mean(expected)
    assert np.abs(nll - expected).max() > 0


def test_targets_may_be_int64():
    model, ids = make_model(), make_ids(5)
    hidden, _ = model(ids, model.initial_memory(BATCH, 0))
    expected = model.nll(hidden, ids)
    np.testing.assert_array_equal(model.nll(hidden, np.asarray(ids, np.int64)), expected)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    model, ids = make_model(), make_ids(5)
    hidden, _ = model(ids, model.initial_memory(BATCH, 0))
    with pytest.raises(UserError, match=r"`temperature` must be positive"):
        model.nll(hidden, ids, temperature=temperature)


def test_the_config_of_a_recurrent_model_is_refused():
    with pytest.raises(UserError, match=r"`model_type` must be transformer_xl.*=lstm"):
        TransformerXL(small_lstm.CONFIG)


def test_targets_must_have_the_shape_of_the_hidden_states():
    model, ids = make_model(), make_ids(5)
    hidden, _ = model(ids, model.initial_memory(BATCH, 0))
    with pytest.raises(ValueError, match=r"`targets` must have the shape \(B, T\) of `hidden`"):
        model.nll(hidden, np.transpose(ids))


def test_rows_to_reset_are_no_numbers_of_rows():
    model = make_model()
    with pytest.raises(ValueError, match=r"`rows` must be \(B,\) bool. Received: shape=\(1,\)"):
        model.reset_memory(model.initial_memory(BATCH, 7), np.array([2]))
    with pytest.raises(ValueError, match=r"`rows` must be \(B,\) bool. Received: shape=\(1,\)"):
        model.reset_memory(model.initial_memory(BATCH, 7), np.array([True]))


def test_a_span_is_no_length():
    model = make_model()
    with pytest.raises(ValueError, match=r"`span` must be an AttentionSpan. Received: 7"):
        model(make_ids(), model.initial_memory(BATCH, 7), span=7)
