import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from golden_cases import EVALUATIONS, load_case, parse_evaluation
from small_language_model import SPANS, make_transformer
from small_model import LOSS_TOLERANCE
from tables import slow_after

from txl_tf.config import AttentionSpan
from txl_tf.layers.memory import clear_rows
from txl_tf.models.cached_model import CachedModel
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.release import load_model


def draw_ids(*shape):
    return tf.constant(np.random.default_rng(2).integers(0, 13, shape), tf.int32)


def read_all(cached, ids, tgt_len, *, counts=None):
    """Returns the hidden states of a text that is read in segments, and the state."""
    state, hidden = cached.initial_state(ids.shape[0]), []
    for start in range(0, ids.shape[1], tgt_len):
        states, state = cached.read(ids[:, start : start + tgt_len], state, counts)
        hidden.append(states)
    return tf.concat(hidden, axis=1), state


LM1B, WORD_LARGE, *OTHERS = reversed(EVALUATIONS)


@pytest.mark.parametrize(
    ("name", "key", "jit"),
    slow_after(2, [(*case, False) for case in (LM1B, WORD_LARGE, *OTHERS)] + [(*LM1B, True)]),
)
def test_the_losses_are_those_of_the_2019_code(name, key, jit):
    case = load_case(name)
    tgt_len, span = parse_evaluation(key)
    cached = CachedModel(load_model(case.checkpoint, case.config), span, tgt_len)

    @tf.function(jit_compile=jit)
    def score(ids, targets, state):
        return cached.score(ids, targets, state)

    state, found = None, []
    for ids, targets in case.cut(tgt_len):
        state = state or cached.initial_state(len(ids))
        nll, state = score(tf.constant(ids), tf.constant(targets), state)
        found.append(nll)
    found, expected = np.concatenate(found, 1), case.golden[key]
    np.testing.assert_allclose(found[:, : expected.shape[1]], expected, rtol=0, atol=LOSS_TOLERANCE)


@pytest.mark.parametrize("span", SPANS, ids=str)
def test_documents_are_told_apart_as_by_the_model(span):
    """Starts anywhere in a segment, several in one, in one row and not in the other."""
    model, ids = make_transformer(), draw_ids(3, 20)
    starts = tf.constant(np.random.default_rng(4).random((3, 20)) < 0.2)
    cached = CachedModel(model, span, 5)
    read = tf.function(cached.read, autograph=False)
    kept = cached.initial_state(3)
    memory = model.initial_memory(3, span.mem_len, mask_empty=True)
    for start in range(0, 20, 5):
        part = slice(start, start + 5)
        expected, memory = model(ids[:, part], memory, span=span, document_starts=starts[:, part])
        found, kept = read(ids[:, part], kept, document_starts=starts[:, part])
        # Values reach 16, where TensorFlow 2.20 rounds by up to 2.4e-5.
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=2e-5)


def test_the_tokens_read_are_counted_from_the_beginning_of_the_document():
    cached = CachedModel(make_transformer(), AttentionSpan(11), 5)
    state, counts = cached.initial_state(2), []
    starts = np.zeros((2, 20), bool)
    starts[0, [4, 6, 8]] = starts[1, 0] = True
    for start in range(0, 20, 5):
        part = slice(start, start + 5)
        ids = draw_ids(2, 20)[:, part]
        _, state = cached.read(ids, state, document_starts=tf.constant(starts[:, part]))
        counts.append(state.n_read.numpy().tolist())
    assert counts == [[1, 5], [2, 10], [7, 12], [12, 12]]


@pytest.mark.parametrize(
    ("span", "is_masked"), [*zip(SPANS, (False, True, False, True, False), strict=True)], ids=str
)
def test_padding_behind_a_text_changes_no_state(span, is_masked):
    """Rows that end within a segment: the states are those of the row alone, then and later."""
    cached = CachedModel(make_transformer(), span, 7, mask_empty_memory=is_masked)
    ids, counts = draw_ids(3, 7), tf.constant([7, 2, 0])
    later = draw_ids(3, 5)
    hidden, state = read_all(cached, ids, 7, counts=counts)
    afterwards, _ = cached.read(later, state)
    for row, count in enumerate(counts.numpy()):
        alone = cached.initial_state(1)
        if count:
            states, alone = cached.read(ids[row : row + 1, :count], alone)
            np.testing.assert_allclose(hidden[row, :count], states[0], rtol=0, atol=2e-5)
        states, _ = cached.read(later[row : row + 1], alone)
        np.testing.assert_allclose(afterwards[row], states[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("same_length", [False, True])
def test_an_empty_memory_that_is_masked_is_no_memory(same_length):
    """A text that fits the memory is read as in one segment without any."""
    model, ids = make_transformer(), draw_ids(3, 12)
    span = AttentionSpan(11, same_length=same_length)
    found, _ = read_all(CachedModel(model, span, 3, mask_empty_memory=True), ids, 3)
    expected, _ = model(ids, model.initial_memory(3, 0), span=AttentionSpan(0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


def test_a_row_that_is_reset_begins_anew():
    cached = CachedModel(make_transformer(), AttentionSpan(7), 5, mask_empty_memory=True)
    ids = draw_ids(3, 5)
    _, state = read_all(cached, draw_ids(3, 10), 5)
    found, _ = cached.read(ids, clear_rows(state, tf.constant([False, True, False])))
    old, _ = cached.read(ids, state)
    new, _ = cached.read(ids, cached.initial_state(3))
    np.testing.assert_array_equal(found[1], new[1])
    np.testing.assert_array_equal(found[0], old[0])
    np.testing.assert_array_equal(found[2], old[2])
    assert abs(old[1] - new[1]).numpy().max() > 0.01


@pytest.mark.parametrize("span", SPANS, ids=str)
def test_tokens_that_are_read_have_the_losses_of_targets(span):
    """In segments of any length up to the model's, also after rows of other lengths."""
    cached, ids = CachedModel(make_transformer(), span, 5), draw_ids(3, 21)
    expected, state = [], cached.initial_state(3)
    for start in range(0, 20, 5):
        part = ids[:, start : start + 5]
        nats, state = cached.score(part, ids[:, start + 1 : start + 6], state)
        expected.append(nats)
    found, state = [], cached.initial_state(3)
    for start in range(0, 21, 5):
        part = ids[:, start : start + 5]
        nats, state = cached.score_ids(part, state, tf.fill([3], part.shape[1]))
        found.append(nats)
    found = tf.concat(found, axis=1)
    np.testing.assert_array_equal(found[:, 0], 0)
    np.testing.assert_allclose(found[:, 1:], tf.concat(expected, axis=1), rtol=0, atol=2e-5)


@pytest.mark.parametrize("defer", [False, True])
def test_positions_are_computed_again_when_the_weights_are_followed(defer):
    model = make_transformer()
    cached, ids = CachedModel(model, SPANS[2], 5, defer_products=defer), draw_ids(3, 5)
    assert cached.follow_weights() == defer
    for weight in model.trainable_variables:
        weight.assign(0.7 * weight)
    expected, _ = CachedModel(model, SPANS[2], 5).read(ids, cached.initial_state(3))
    stale, _ = cached.read(ids, cached.initial_state(3))
    assert (stale.numpy() != expected.numpy()).any()
    assert cached.follow_weights()
    found, _ = cached.read(ids, cached.initial_state(3))
    np.testing.assert_array_equal(found, expected)
    assert not cached.follow_weights()


def test_the_table_of_another_encoding_is_followed():
    config = dataclasses.replace(make_transformer().config, encoding="shaw", n_positions=40)
    model = TransformerXL(config, seed=1)
    cached = CachedModel(model, SPANS[2], 5)
    assert not cached.follow_weights()
    model.distance_table.assign(0.7 * model.distance_table)
    assert cached.follow_weights()
