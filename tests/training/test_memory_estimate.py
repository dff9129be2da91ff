"""The memory of training by arithmetic; tests/benchmarks compares it with the account of XLA."""

import dataclasses

import pytest

import txl_tf
from txl_tf.training import step_memory
from txl_tf.training.step_tensors import Tensor

SMALL = txl_tf.ModelConfig(
    n_token=23, n_layer=2, d_model=8, d_embed=8, n_head=3, d_head=5, d_inner=11
)
TRAINING = txl_tf.TrainConfig(train_batch_size=3, tgt_len=5, mem_len=7)


def test_memory_that_follows_from_the_config():
    n = SMALL.count_parameters()
    training = dataclasses.replace(TRAINING, train_batch_size=6, ema=0.9, precision="bfloat16")
    memory = step_memory.estimate_memory(SMALL, training, n_replicas=2)
    assert memory[:4] == (4 * n, 8 * n, 12 * n, 3 * 7 * 8 * 2 * 2)


@pytest.mark.parametrize(
    "change", [{"accumulate_steps": 3}, {"remat": True}, {"precision": "bfloat16"}]
)
def test_what_saves_memory_lowers_the_estimate(change):
    training = dataclasses.replace(TRAINING, **change)
    config = dataclasses.replace(SMALL, n_layer=12)
    less, more = (step_memory.estimate_memory(config, x).activations for x in (training, TRAINING))
    assert less < more


def test_the_memory_after_the_step_is_as_large_as_the_one_before():
    memory = step_memory.estimate_memory(SMALL, TRAINING)
    assert memory.next_memory == memory.recurrent == 3 * 7 * 8 * 2 * 4


def test_the_parts_of_the_activations_are_all_of_them():
    parts = step_memory.estimate_activations(SMALL, TRAINING)
    memory = step_memory.estimate_memory(SMALL, TRAINING)
    assert sum(parts.values()) == memory.activations
    assert min(parts.values()) >= 0


def test_replicas_and_parts_of_a_batch_hold_their_own_rows_only():
    whole = step_memory.estimate_activations(SMALL, TRAINING)
    larger = dataclasses.replace(TRAINING, train_batch_size=18, accumulate_steps=3)
    assert step_memory.estimate_activations(SMALL, larger, n_replicas=2) == whole


def make_tensor(size, made, last, *, is_result=False):
    tensor = Tensor("part", size, made, is_result=is_result)
    tensor.last = last
    return tensor


def test_tensors_that_never_meet_share_memory():
    tensors = [make_tensor(7, 0, 2), make_tensor(5, 1, 3), make_tensor(6, 3, 4)]
    assert step_memory._pack(tensors) == 7 + 5


def test_a_tensor_lies_in_the_smallest_gap_into_which_it_fits():
    # Two long tensors stay when those below and between them have ended: gaps of 31 and 11.
    tensors = [make_tensor(31, 0, 1), make_tensor(29, 0, 9), make_tensor(23, 2, 3)]
    tensors.append(make_tensor(7, 2, 3))
    assert step_memory._pack(tensors) == 31 + 29


def test_a_temporary_tensor_takes_the_place_of_a_result_that_is_not_made_yet():
    result = make_tensor(11, 5, 5, is_result=True)
    early, late, large = make_tensor(7, 0, 4), make_tensor(7, 4, 6), make_tensor(13, 0, 4)
    assert step_memory._find_temporary([result, early, late, large]) == [large, late]
