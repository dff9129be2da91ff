"""The memory of training by arithmetic; tests/benchmarks compares it with the account of XLA."""

import dataclasses

import pytest

import txl_tf
from txl_tf.training import step_memory

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


def test_replicas_and_parts_of_a_batch_hold_their_own_rows_only():
    whole = step_memory.estimate_activations(SMALL, TRAINING)
    larger = dataclasses.replace(TRAINING, train_batch_size=18, accumulate_steps=3)
    assert step_memory.estimate_activations(SMALL, larger, n_replicas=2) == whole
