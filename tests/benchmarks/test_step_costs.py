"""Parameters and operations by arithmetic, against what is built and compiled."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

import txl_tf
from benchmarks import step_costs as costs
from txl_tf import presets
from txl_tf.config.parameters import count_by_part
from txl_tf.training.muon import orthogonalize
from txl_tf.training.step import compute_gradients

SMALL = txl_tf.ModelConfig(
    n_token=23, n_layer=2, d_model=8, d_embed=8, n_head=3, d_head=5, d_inner=11
)
TRAINING = txl_tf.TrainConfig(train_batch_size=3, tgt_len=5, mem_len=7)
ADAPTIVE = dataclasses.replace(SMALL, cutoffs=(7, 13))
DIVIDED = dataclasses.replace(ADAPTIVE, div_val=2)
NARROW = dataclasses.replace(SMALL, d_embed=6)
MODELS = {
    "plain": SMALL,
    "narrow": NARROW,
    "narrow shared": dataclasses.replace(NARROW, cutoffs=(7, 13), proj_share_all_but_first=True),
    "divided": DIVIDED,
}
ENCODED = {
    "shaw": dataclasses.replace(SMALL, encoding="shaw", n_positions=12),
    "sinusoid": dataclasses.replace(SMALL, encoding="sinusoid"),
}


def compile_step(config, training):
    """Returns what XLA is given of a training step, as a text."""
    model = txl_tf.TransformerXL(config, seed=1, remat=training.remat)
    ids = tf.zeros((training.train_batch_size, training.window_len), tf.int32)

    def compute(ids, *memory):
        loss_start = training.window_len - costs.count_scored(training)
        return compute_gradients(model, ids, ids, memory, span=training.span, loss_start=loss_start)

    function = tf.function(compute, jit_compile=True, autograph=False)
    memory = model.initial_memory(training.train_batch_size, training.mem_len)
    return function.experimental_get_compiler_ir(ids, *memory)(stage="hlo")


def read_sizes(text):
    return [int(size) for size in text.split(",") if size]


def count_products(text):
    """Returns the operations of all products of matrices in it; the body of a loop counts once."""
    lines = re.findall(r"^\s*(?:ROOT )?%?(\S+) = \w+\[([\d,]*)\]", text, flags=re.MULTILINE)
    shapes = {name: read_sizes(sizes) for name, sizes in lines}
    dots = re.findall(
        r"= \w+\[([\d,]*)\]\S* dot\((?:\S+ )?%?([^\s,]+),.*lhs_contracting_dims=\{([\d,]*)\}", text
    )
    return sum(
        2 * np.prod(read_sizes(out)) * np.prod([shapes[left][k] for k in read_sizes(inner)])
        for out, left, inner in dots
    )


def count_flops(config, training):
    # 15 tokens are taken in chunks of 2: with less than 2 in a tail bin each loop has one turn.
    shares = (0.8, 0.1, 0.1) if config.cutoffs else None
    return costs.count_step_flops(config, training, bin_shares=shares)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_operations_are_those_that_are_compiled(name):
    assert count_flops(MODELS[name], TRAINING) == count_products(
        compile_step(MODELS[name], TRAINING)
    )


@pytest.mark.slow
def test_operations_that_are_made_twice_count_twice():
    training = dataclasses.replace(TRAINING, remat=True)
    found = count_products(compile_step(SMALL, training))
    # Before XLA removes it there is a gradient of the positions, which nothing asks for.
    unused = SMALL.n_layer * 2 * (5 + 7) * SMALL.d_model * 15
    assert count_flops(SMALL, training) == found - unused


def test_each_part_of_a_batch_projects_the_positions():
    once = costs.count_step_flops(SMALL, dataclasses.replace(TRAINING, train_batch_size=6))
    split = dataclasses.replace(TRAINING, train_batch_size=6, accumulate_steps=2)
    positions = SMALL.n_layer * 2 * 2 * (5 + 7) * SMALL.d_model * 15  # forward, and the kernel's
    for n_replicas, training in ((1, split), (2, dataclasses.replace(split, accumulate_steps=1))):
        found = costs.count_step_flops(SMALL, training, n_replicas=n_replicas)
        assert found == once + positions


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODED)
def test_operations_with_other_encodings_are_those_that_are_compiled(name):
    config = ENCODED[name]
    training = dataclasses.replace(TRAINING, mem_len=7 if config.can_have_memory else 0)
    expected = count_products(compile_step(config, training))
    assert count_flops(config, training) == expected


@pytest.mark.parametrize("name", MODELS)
def test_parameters_by_part_are_those_of_the_parts(name):
    model = txl_tf.TransformerXL(MODELS[name], seed=1)
    counts = count_by_part(MODELS[name])
    assert counts["embedding"] == sum(np.prod(x.shape) for x in model.embedding.trainable_variables)
    assert counts["softmax"] == sum(np.prod(x.shape) for x in model.softmax.trainable_variables)


def test_shares_by_zipf_are_those_of_the_law():
    config = presets.model("wt103_base")
    weights = 1 / np.arange(1, config.n_token + 1)
    expected = [weights[low:high].sum() / weights.sum() for low, high in config.bins]
    # The sums are taken by their expansion to the term in 1/k.
    assert costs.estimate_bin_shares(config) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "shaw"])
def test_the_orthogonalization_of_muon_counts_on_each_replica(name):
    config = MODELS.get(name) or ENCODED[name]
    model = txl_tf.TransformerXL(config, seed=1)
    expected = 0
    for weight in model.weight_groups["kernels"]:
        function = tf.function(orthogonalize, jit_compile=True, autograph=False)
        n_joint = getattr(weight, "n_joint", 1)
        compiled = function.experimental_get_compiler_ir(
            tf.zeros(weight.shape), n_joint, product_dtype="float32"
        )
        expected += count_products(compiled(stage="hlo"))
    training = dataclasses.replace(TRAINING, optimizer="muon")
    for n_replicas in (1, 3):
        found = costs.count_step_flops(config, training, n_replicas=n_replicas)
        assert (
            found - costs.count_step_flops(config, TRAINING, n_replicas=n_replicas)
            == n_replicas * expected
        )
