import numpy as np
import pytest
import tensorflow as tf

from txl_tf.layers import count_before, make_attention_mask, update_memory

BATCH, LENGTH, WIDTH = 2, 5, 3
STARTS = np.array([[0, 0, 1, 0, 1], [1, 0, 0, 0, 0]], bool)


@pytest.mark.parametrize("same_length", [False, True])
@pytest.mark.parametrize(("tgt_len", "mem_len"), [(1, 0), (5, 0), (1, 7), (5, 3), (3, 11)])
def test_a_query_sees_the_memory_and_the_segment_up_to_itself(tgt_len, mem_len, same_length):
    mask = make_attention_mask(tgt_len, mem_len, same_length=same_length)
    expected = [
        [j <= i + mem_len and (j >= i or not same_length) for j in range(mem_len + tgt_len)]
        for i in range(tgt_len)
    ]
    np.testing.assert_array_equal(mask, expected)


@pytest.mark.parametrize("mem_len", [0, 1, 3, 5, 7, 11])
def test_memory_is_the_last_of_old_memory_and_segment(mem_len):
    rng = np.random.default_rng(3)
    memory = rng.normal(size=(BATCH, mem_len, WIDTH)).astype("float32")
    hidden = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    updated = update_memory(tf.constant(memory), tf.constant(hidden))
    expected = np.concatenate([memory, hidden], axis=1)[:, LENGTH:]
    np.testing.assert_array_equal(updated, expected)


def number_documents(mem_len):
    """The number of the document of each state of memory and segment, counted by hand."""
    numbers = np.zeros((BATCH, mem_len + LENGTH), int)
    for row, t in np.argwhere(STARTS):
        numbers[row, mem_len + t :] += 1
    return numbers


@pytest.mark.parametrize("same_length", [False, True])
@pytest.mark.parametrize("mem_len", [0, 3, 7])
def test_a_query_sees_no_other_document_and_no_empty_entry(mem_len, same_length):
    n_read = np.array([2, 11])  # 2 of the entries of the first row hold a token
    numbers = number_documents(mem_len)
    numbers[0, : max(0, mem_len - 2)] = -1
    same = numbers[:, mem_len:, None] == numbers[:, None, :]
    mask = make_attention_mask(LENGTH, mem_len, same_length=same_length)
    n_before = count_before(tf.constant(n_read, "int32"), LENGTH, tf.constant(STARTS))
    found = make_attention_mask(LENGTH, mem_len, same_length=same_length, n_before=n_before)
    assert found.dtype == tf.bool
    np.testing.assert_array_equal(found[:, 0], mask & same)


def test_tokens_are_counted_from_the_beginning_of_their_document():
    n_read = tf.constant([3, 5])
    expected = [[3, 4, 0, 1, 0], [0, 1, 2, 3, 4]]
    np.testing.assert_array_equal(count_before(n_read, LENGTH, tf.constant(STARTS)), expected)
    expected = np.array([[3], [5]]) + np.arange(LENGTH)
    np.testing.assert_array_equal(count_before(n_read, LENGTH), expected)


@pytest.mark.parametrize("mem_len", [0, 3, 5, 7])
def test_memory_carries_no_gradient(mem_len):
    memory, hidden = tf.ones((BATCH, mem_len, WIDTH)), tf.ones((BATCH, LENGTH, WIDTH))
    with tf.GradientTape() as tape:
        tape.watch([memory, hidden])
        updated = update_memory(memory, hidden)
    assert tape.gradient(updated, [memory, hidden]) == [None, None]


@pytest.mark.parametrize("mem_len", [3, 7])
def test_memory_keeps_its_dtype(mem_len):
    memory = tf.zeros((BATCH, mem_len, WIDTH), "bfloat16")
    hidden = tf.ones((BATCH, LENGTH, WIDTH), "float32")
    assert update_memory(memory, hidden).dtype == tf.bfloat16
