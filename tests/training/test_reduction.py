"""Gradients are averaged over replicas in one reduction, packed, if asked in half the bytes."""

import collections
import dataclasses

import numpy as np
import pytest
from small_runs import MODEL, TRAINING, make_trainer, read_variables, run_steps

SHALLOW = dataclasses.replace(MODEL, n_layer=1)
HALF = dataclasses.replace(TRAINING, reduce_dtype="bfloat16")


@pytest.fixture(scope="module")
def float_run(two_replicas):
    trainer = make_trainer(two_replicas, SHALLOW)
    return run_steps(trainer, [5]), trainer


@pytest.fixture(scope="module")
def half_run(two_replicas):
    trainer = make_trainer(two_replicas, SHALLOW, HALF)
    return run_steps(trainer, [5]), trainer


def count_reductions(trainer):
    """Returns how many reductions each replica makes in a step, by type."""
    arguments, step = [], trainer.run_steps

    def keep_arguments(*given):
        arguments.append(given)
        return step(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "run_steps", keep_arguments)
        # Five steps again, which need no other trace.
        run_steps(trainer, [10])
    graph = step.get_concrete_function(*arguments[0]).graph.as_graph_def()
    nodes = [*graph.node, *(node for each in graph.library.function for node in each.node_def)]
    found = collections.Counter(
        node.attr["T"].type for node in nodes if node.op.startswith("CollectiveReduce")
    )
    return sorted(count / 2 for count in found.values())


def test_a_step_makes_one_reduction_and_one_of_each_type(float_run, half_run):
    assert count_reductions(float_run[1]) == [1]
    assert count_reductions(half_run[1]) == [1, 1]  # the loss is not rounded


def test_half_the_bytes_give_nearly_the_same_steps(float_run, half_run):
    half, whole = half_run[0], float_run[0]
    # bfloat16 has 8 bits: each gradient is off by up to 1/256, their norm by less.
    np.testing.assert_allclose(half.grad_norm, whole.grad_norm, rtol=1 / 256)
    assert (half.grad_norm != whole.grad_norm).all()
    np.testing.assert_allclose(half.nats, whole.nats, rtol=1e-2)
    assert half.nats[0] == whole.nats[0]  # the loss itself is not rounded


def test_replicas_agree_after_a_rounded_reduction(half_run):
    trainer = half_run[1]
    for weight in trainer.model.weights:
        first, second = trainer.strategy.experimental_local_results(weight.value)
        np.testing.assert_array_equal(first.numpy(), second.numpy(), err_msg=weight.path)


@pytest.mark.slow
def test_one_replica_rounds_nothing(one_replica):
    runs = [make_trainer(one_replica, SHALLOW, config) for config in (TRAINING, HALF)]
    losses = [run_steps(trainer, [3]).nats for trainer in runs]
    np.testing.assert_array_equal(*losses)
    whole, half = map(read_variables, runs)
    for path in whole:
        np.testing.assert_array_equal(half[path], whole[path], err_msg=path)
