"""Documents in a stream: each sees nothing of the one before."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from small_model import BATCH, LENGTH, SAME, make_ids, make_model, read
from tables import slow_after

from txl_tf.config import AttentionSpan

# Where documents begin in two rows of 31 tokens: in the middle of segments of 5, at their edges,
# one token long, and longer than memory and segment. The first goes on from an empty memory.
DOCUMENT_STARTS = ((7, 8, 20), (5, 10, 11, 13, 28))
LONG = AttentionSpan(13, same_length=True, clamp_len=4)
SEGMENT = AttentionSpan(5, same_length=True)
SHORT = AttentionSpan(3, same_length=True)


def mark_starts(length, starts=DOCUMENT_STARTS):
    marks = np.zeros((len(starts), length), bool)
    for row, positions in enumerate(starts):
        marks[row, list(positions)] = True
    return marks


def read_documents(model, ids, starts, tgt_len, span, *, jit=False):
    """As `read`, with documents that see nothing of each other; also returns the last memory."""
    call = tf.function(
        lambda ids, memory, starts: model(ids, memory, span=span, document_starts=starts),
        jit_compile=jit,
    )
    memory, parts = model.initial_memory(len(ids), span.mem_len, mask_empty=True), []
    for start in range(0, ids.shape[1], tgt_len):
        segment = slice(start, start + tgt_len)
        hidden, memory = call(tf.constant(ids[:, segment]), memory, tf.constant(starts[:, segment]))
        parts.append(np.asarray(hidden))
    return np.concatenate(parts, axis=1), memory


@pytest.mark.parametrize(
    ("span", "jit"),
    slow_after(1, [(LONG, False), (SEGMENT, False), (SHORT, False), (LONG, True)]),
    ids=["long", "segment", "short", "compiled"],
)
def test_a_document_in_a_stream_equals_the_document_alone(span, jit):
    model, ids = make_model(), make_ids(31)
    found, _ = read_documents(model, ids, mark_starts(31), 5, span, jit=jit)
    targets = ids[:, ::-1]
    losses = np.asarray(model.nll(found, targets))
    for row, starts in enumerate(DOCUMENT_STARTS):
        for start, end in itertools.pairwise((0, *starts, 31)):
            place = slice(start, end)
            # Not in the segments of the stream: how a text is cut changes nothing.
            alone = read(model, ids[row : row + 1, place], 4, span, mask_empty=True)
            np.testing.assert_allclose(found[row, place], alone[0], **SAME)
            expected = model.nll(alone, targets[row : row + 1, place])[0]
            np.testing.assert_allclose(losses[row, place], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("mem_len", "same_length"), [(3, True), (7, False)])
def test_a_document_at_the_first_token_equals_a_reset_memory(mem_len, same_length):
    model, ids, span = make_model(), make_ids(), AttentionSpan(mem_len, same_length=same_length)
    rows = np.array([False, True])
    starts = mark_starts(LENGTH, [(), (0,)])
    memory = model(ids, model.initial_memory(BATCH, mem_len, mask_empty=True), span=span)[1]
    found, memory_found = model(ids, memory, span=span, document_starts=starts)
    expected, memory_expected = model(ids, model.reset_memory(memory, rows), span=span)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(memory_found[-1], memory_expected[-1])
    after = [model(ids, each, span=span)[0] for each in (memory_found, memory_expected)]
    np.testing.assert_array_equal(*after)
    without = model(ids, memory, span=span)[0]
    assert np.abs(found - without)[1].max() > 1e-2


def test_a_memory_counts_the_tokens_of_the_document_that_it_holds():
    model, ids = make_model(), make_ids()
    memory, found = model.initial_memory(BATCH, 7, mask_empty=True), []
    for starts in ([(3,), ()], [(), (0, 4)], [(), ()]):
        marks = tf.constant(mark_starts(LENGTH, starts))
        memory = model(ids, memory, document_starts=marks)[1]
        found.append(memory[-1].numpy().tolist())
    assert found == [[2, 5], [7, 1], [7, 6]]


@pytest.mark.parametrize("same_length", [False, True])
def test_an_empty_memory_that_is_hidden_is_no_memory(same_length):
    """A text that fits the memory is read as in one segment without any."""
    model, ids, span = make_model(), make_ids(12), AttentionSpan(11, same_length=same_length)
    found = read(model, ids, 4, span, mask_empty=True)
    expected, _ = model(ids, model.initial_memory(BATCH, 0))
    np.testing.assert_allclose(found, expected, **SAME)
    assert np.abs(found - read(model, ids, 4, span)).max() > 1e-2  # the default of the release


def test_without_a_document_that_begins_nothing_changes():
    model, ids, span = make_model(), make_ids(), AttentionSpan(7)
    memory = model(ids, model.initial_memory(BATCH, 7, mask_empty=True), span=span)[1]
    found = model(ids, memory, span=span, document_starts=np.zeros(ids.shape, bool))
    expected = model(ids, memory, span=span)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


def test_no_gradient_flows_into_the_document_before():
    model, old, new = make_model(), [2, 3, 5], [7, 11]
    ids = np.array([old + new, old + new], "int32")

    def differentiate(starts):
        with tf.GradientTape() as tape:
            memory = model.initial_memory(BATCH, 7, mask_empty=True)
            hidden, _ = model(ids, memory, document_starts=starts)
            loss = tf.reduce_sum(hidden[:, 3:] ** 3)
        table = model.embedding.tables[0].value
        return np.abs(tf.convert_to_tensor(tape.gradient(loss, table)))

    gradient = differentiate(mark_starts(LENGTH, [(3,), (3,)]))
    assert gradient[old].max() == 0
    assert gradient[new].min() > 0
    assert differentiate(None)[old].max() > 1e-2


def test_document_starts_of_another_shape_are_an_error():
    model, starts = make_model(), np.zeros((BATCH, 1), bool)
    with pytest.raises(
        ValueError, match=r"`document_starts` must have the shape of `ids`.*\(2, 5\)"
    ):
        model(make_ids(), model.initial_memory(BATCH, 7), document_starts=starts)


def test_document_starts_need_a_memory_that_counts():
    model, starts = make_model(), np.zeros((BATCH, LENGTH), bool)
    with pytest.raises(ValueError, match=r"needs a memory of initial_memory\(..., mask_empty=True"):
        model(make_ids(), model.initial_memory(BATCH, 7), document_starts=starts)
