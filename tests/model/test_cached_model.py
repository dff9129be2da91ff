import numpy as np
import pytest
import tensorflow as tf
from golden_cases import EVALUATIONS, NAMES, load_case, parse_evaluation
from small_cached_model import SPANS, make_model
from small_model import COMPILED, LOSS_TOLERANCE

from txl_tf.cached_model import CachedModel
from txl_tf.config import AttentionSpan
from txl_tf.release import load_model


def draw_ids(*shape):
    return tf.constant(np.random.default_rng(2).integers(0, 13, shape), tf.int32)


def read_all(cached, ids, tgt_len, *, counts=None):
    """Returns the hidden states of a text that is read in segments, and the memory."""
    memory, hidden = cached.initial_memory(ids.shape[0]), []
    positions = cached.project_positions(tgt_len)
    for start in range(0, ids.shape[1], tgt_len):
        states, memory = cached.read(ids[:, start : start + tgt_len], memory, positions, counts)
        hidden.append(states)
    return tf.concat(hidden, axis=1), memory


@COMPILED
@pytest.mark.parametrize(("name", "key"), [*((name, None) for name in NAMES), *EVALUATIONS])
def test_the_losses_are_those_of_the_2019_code(name, key, jit):
    case = load_case(name)
    tgt_len, span = parse_evaluation(key) if key else (case.tgt_len, case.span)
    cached = CachedModel(load_model(case.checkpoint, case.config), span)

    @tf.function(jit_compile=jit)
    def score(ids, targets, memory, positions):
        hidden, memory = cached.read(ids, memory, positions)
        return cached.model.nll(hidden, targets), memory

    memory, found = None, []
    for ids, targets in case.cut(tgt_len):
        memory = memory or cached.initial_memory(len(ids))
        positions = cached.project_positions(ids.shape[1])
        nll, memory = score(tf.constant(ids), tf.constant(targets), memory, positions)
        found.append(nll)
    expected = [case.golden[key]] if key else [case.golden[f"nll_{k}"] for k in range(len(found))]
    found, expected = np.concatenate(found, 1), np.concatenate(expected, 1)
    np.testing.assert_allclose(found[:, : expected.shape[1]], expected, rtol=0, atol=LOSS_TOLERANCE)


@pytest.mark.parametrize("span", SPANS, ids=str)
def test_cached_keys_and_values_are_those_of_the_hidden_states(span):
    model, ids = make_model(), draw_ids(3, 20)
    found, _ = read_all(CachedModel(model, span), ids, 5)
    memory, expected = model.initial_memory(3, span.mem_len), []
    for start in range(0, 20, 5):
        hidden, memory = model(ids[:, start : start + 5], memory, span=span)
        expected.append(hidden)
    np.testing.assert_allclose(found, tf.concat(expected, axis=1), rtol=0, atol=2e-5)


@COMPILED
@pytest.mark.parametrize("span", SPANS, ids=str)
def test_documents_are_told_apart_as_by_the_model(span, jit):
    """Starts anywhere in a segment, several in one, in one row and not in the other."""
    model, ids = make_model(), draw_ids(3, 20)
    starts = tf.constant(np.random.default_rng(4).random((3, 20)) < 0.2)
    cached = CachedModel(model, span)
    read = tf.function(cached.read, jit_compile=jit, autograph=False)
    positions, kept = cached.project_positions(5), cached.initial_memory(3)
    memory = model.initial_memory(3, span.mem_len)
    for start in range(0, 20, 5):
        part = slice(start, start + 5)
        expected, memory = model(ids[:, part], memory, span=span, document_starts=starts[:, part])
        found, kept = read(ids[:, part], kept, positions, document_starts=starts[:, part])
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("span", SPANS, ids=str)
def test_what_follows_a_text_changes_nothing(span, is_masked):
    """Rows that end within a segment: the states are those of the row alone, then and later."""
    cached = CachedModel(make_model(), span, mask_empty_memory=is_masked)
    ids, counts = draw_ids(3, 7), tf.constant([7, 2, 0])
    later, positions = draw_ids(3, 5), cached.project_positions(5)
    hidden, memory = read_all(cached, ids, 7, counts=counts)
    afterwards, _ = cached.read(later, memory, positions)
    for row, count in enumerate(counts.numpy()):
        alone = cached.initial_memory(1)
        if count:
            places = cached.project_positions(count)
            states, alone = cached.read(ids[row : row + 1, :count], alone, places)
            np.testing.assert_allclose(hidden[row, :count], states[0], rtol=0, atol=2e-5)
        states, _ = cached.read(later[row : row + 1], alone, positions)
        np.testing.assert_allclose(afterwards[row], states[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("same_length", [False, True])
def test_an_empty_memory_that_is_masked_is_no_memory(same_length):
    """A text that fits the memory is read as in one segment without any."""
    model, ids = make_model(), draw_ids(3, 12)
    span = AttentionSpan(11, same_length=same_length)
    found, _ = read_all(CachedModel(model, span, mask_empty_memory=True), ids, 3)
    expected, _ = model(ids, model.initial_memory(3, 0), span=AttentionSpan(0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


def test_a_row_that_is_reset_begins_anew():
    cached = CachedModel(make_model(), AttentionSpan(7), mask_empty_memory=True)
    ids, positions = draw_ids(3, 5), cached.project_positions(5)
    _, memory = read_all(cached, draw_ids(3, 10), 5)
    found, _ = cached.read(ids, memory.reset(tf.constant([False, True, False])), positions)
    old, _ = cached.read(ids, memory, positions)
    new, _ = cached.read(ids, cached.initial_memory(3), positions)
    np.testing.assert_array_equal(found[1], new[1])
    np.testing.assert_array_equal(found[0], old[0])
    np.testing.assert_array_equal(found[2], old[2])
    assert abs(old[1] - new[1]).numpy().max() > 0.01
