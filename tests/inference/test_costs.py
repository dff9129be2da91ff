"""The operations of a generated token; tests/benchmarks compares the memory with the measured."""

import dataclasses

import txl_tf
from txl_tf.inference.costs import count_token_flops, estimate_generation_memory

CONFIG = txl_tf.ModelConfig(
    n_token=23, n_layer=2, d_model=8, d_embed=6, n_head=3, d_head=5, d_inner=11, cutoffs=(7, 13)
)


def test_the_operations_of_a_token_are_those_counted_by_hand():
    # 13 keys; the softmax projects the hidden states in each bin, and the head has two clusters.
    assert count_token_flops(CONFIG, 12) == {
        "embedding": 2 * 6 * 8,
        "projections": 2 * 2 * 4 * 8 * 15,
        "attention": 2 * 2 * 3 * 13 * 15,
        "feed-forward": 2 * 2 * 2 * 8 * 11,
        "softmax": 2 * 6 * (9 + 6 + 10 + 3 * 8),
    }


def test_only_the_bins_that_are_computed_count():
    assert count_token_flops(CONFIG, 12, n_bins=1)["softmax"] == 2 * 6 * (9 + 8)


def test_texts_share_weights_but_not_keys_and_values():
    one, three = (estimate_generation_memory(CONFIG, 12, n_texts=count) for count in (1, 3))
    assert three["keys and values"] == 3 * one["keys and values"]
    assert three["weights"] == one["weights"] == 4 * CONFIG.count_parameters()


def test_narrow_kernels_are_restored_for_more_than_four_texts():
    # All kernels and tables but those of the distances.
    config = dataclasses.replace(CONFIG, n_layer=1)
    n_kernels = 4 * 8 * 15 + 2 * 8 * 11 + 23 * 6
    for count, expected in ((4, 0), (5, 4 * n_kernels)):
        memory = estimate_generation_memory(config, 12, n_texts=count, dtype="int8")
        assert memory["restored kernels"] == expected
