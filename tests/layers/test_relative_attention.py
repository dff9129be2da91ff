import itertools

import numpy as np
import pytest
import tensorflow as tf
from numpy_models import compute_terms, project, soften

from txl_tf.config import ModelConfig
from txl_tf.layers import (
    RelativeAttention,
    left_shift,
    make_attention_mask,
    make_position_table,
)

BATCH, QUERIES, MEMORY, HEADS, HEAD_SIZE, WIDTH = 2, 3, 5, 7, 11, 14
KEYS = MEMORY + QUERIES
# Sums of at most 14 terms of the order of 1, in float32.
CLOSE = {"rtol": 0, "atol": 3e-5}


def make_attention(**arguments):
    attention = RelativeAttention(n_head=HEADS, d_head=HEAD_SIZE, **arguments)
    attention.build((BATCH, QUERIES, WIDTH))
    rng = np.random.default_rng(5)
    for variable in attention.trainable_variables:
        variable.assign(rng.normal(scale=0.3, size=variable.shape))
    return attention


def make_inputs(*, same_length=False):
    """Returns hidden, memory, positions, u, v and the mask."""
    rng = np.random.default_rng(11)
    shapes = [(BATCH, QUERIES, WIDTH), (BATCH, MEMORY, WIDTH), *[(HEADS, HEAD_SIZE)] * 2]
    tensors = [tf.constant(rng.normal(size=shape), "float32") for shape in shapes]
    tensors.insert(2, make_position_table(KEYS, WIDTH))
    return *tensors, make_attention_mask(QUERIES, MEMORY, same_length=same_length)


DOCUMENTS = np.array([[0] * 6 + [1, 1], [0] * 5 + [1, 1, 2]])  # of each key
SAME_DOCUMENT = DOCUMENTS[:, MEMORY:, None] == DOCUMENTS[:, None, :]


def attend_by_hand(attention, hidden, memory, positions, u, v, mask):
    """The four terms of the paper, for each row."""
    config = ModelConfig(n_token=2, n_layer=1, d_model=WIDTH, n_head=HEADS, d_head=HEAD_SIZE)
    kernels = {name: getattr(attention, name) for name in ("qkv_kernel", "r_kernel", "o_kernel")}
    weights = {f"layer_0/attention/{name}": kernel for name, kernel in kernels.items()}
    weights |= {"content_bias": u, "position_bias": v}
    weights = {name: np.asarray(weight, np.float64) for name, weight in weights.items()}
    attended = []
    for states, before, visible in zip(hidden, memory, mask, strict=True):
        inputs = config, 0, states.numpy(), np.concatenate([before, states])
        scores = compute_terms(weights, *inputs).sum(axis=0)
        _, _, values = project(weights, *inputs)
        attended.append(np.einsum("nij,jnh->inh", soften(scores, visible), values))
    o_kernel = weights["layer_0/attention/o_kernel"]
    return np.reshape(attended, (BATCH, QUERIES, HEADS * HEAD_SIZE)) @ o_kernel


@pytest.mark.parametrize("same_length", [False, True])
def test_attention_has_the_four_terms_of_the_paper(same_length):
    attention, (*tensors, mask) = make_attention(), make_inputs(same_length=same_length)
    expected = attend_by_hand(attention, *tensors, np.stack([mask] * BATCH))
    np.testing.assert_allclose(attention(*tensors, mask), expected, **CLOSE)


# XLA on CPU was once reported to make a softmax over masked rows uniform.
@pytest.mark.parametrize("jit", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("same_length", [False, True])
def test_rows_may_have_masks_of_their_own(same_length, jit):
    attention, (*tensors, mask) = make_attention(), make_inputs(same_length=same_length)
    mask = SAME_DOCUMENT & np.asarray(mask)  # (B, T, S)
    expected = attend_by_hand(attention, *tensors, mask)
    attend = tf.function(attention, jit_compile=jit)
    np.testing.assert_allclose(attend(*tensors, tf.constant(mask[:, None])), expected, **CLOSE)


def test_scores_far_below_zero_keep_their_order_in_bfloat16():
    attention = make_attention(dtype="mixed_bfloat16")
    inputs = make_inputs(same_length=True)
    expected = np.asarray(make_attention()(*inputs))
    attended = attention(*inputs)
    assert attended.dtype == tf.bfloat16
    # 3 digits, and sums over 13 and 77 entries: a few per cent of the typical size.
    difference = np.asarray(tf.cast(attended, "float32")) - expected
    assert np.sqrt(np.mean(difference**2)) < 0.03 * np.sqrt(np.mean(expected**2))


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 5), (5, 5), (3, 7), (7, 11)])
def test_left_shift_moves_each_distance_to_its_key(queries, keys):
    scores = np.random.default_rng(7).normal(size=(2, 3, queries, keys)).astype("float32")
    shifted = np.asarray(left_shift(scores))
    assert shifted.shape == scores.shape
    for i, j in itertools.product(range(queries), range(keys)):
        distance = i + keys - queries - j
        if distance >= 0:
            np.testing.assert_array_equal(shifted[..., i, j], scores[..., i, keys - 1 - distance])
