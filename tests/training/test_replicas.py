"""Any number of replicas makes the steps of one."""

import dataclasses

import numpy as np
import pytest
from small_runs import (
    BATCH,
    DOCUMENTS,
    DROPPING,
    MODEL,
    RESETTING,
    TGT_LEN,
    TRAINING,
    Text,
    make_lanes,
    make_trainer,
    read_memory,
    read_variables,
    run_steps,
)

from txl_tf.errors import UserError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def one_run(one_replica):
    trainer = make_trainer(one_replica)
    return run_steps(trainer, [10, 20]), trainer


@pytest.fixture(scope="module", params=["none", "chains", "whole"])
def two_run(request, two_replicas):
    trainer = make_trainer(two_replicas, jit=request.param)
    return run_steps(trainer, [10, 20]), trainer


def test_two_replicas_clip_the_averaged_gradients(one_run, two_run):
    # Clipped on each replica before they are averaged, gradients would be others, and Adam's
    # moments with them. The moments carry rounding only, unlike the weights.
    assert one_run[0].grad_norm.min() > TRAINING.clip
    one, two = (read_variables(trainer) for _, trainer in (one_run, two_run))
    moments = [path for path in one if path.endswith("_momentum")]
    assert len(moments) == len(one_run[1].model.trainable_variables)
    for path in moments:
        np.testing.assert_allclose(two[path], one[path], atol=1e-6, err_msg=path)


def test_each_replica_keeps_the_memory_of_its_lanes(one_run, two_run):
    for (whole,), parts in zip(read_memory(one_run[1]), read_memory(two_run[1]), strict=True):
        assert len(parts) == 2
        assert np.abs(whole).mean() > 0.1
        for replica, part in enumerate(parts):
            rows = slice(replica * BATCH // 2, (replica + 1) * BATCH // 2)
            # The hidden states differ as the weights do; those of two lanes differ by 1.
            np.testing.assert_allclose(part, whole[rows], atol=1e-3)


@pytest.mark.parametrize("jit", ["none", "chains", "whole"])
def test_two_replicas_empty_the_memory_where_one_does(one_replica, two_replicas, jit):
    lanes = make_lanes(RESETTING, DOCUMENTS)
    one, two = (
        make_trainer(strategy, config=RESETTING, jit=jit)
        for strategy in (one_replica, two_replicas)
    )
    one_run, two_run = (run_steps(trainer, [3, 11], lanes) for trainer in (one, two))
    # Sums in another order, float32, carried through 11 steps.
    np.testing.assert_allclose(two_run.nats, one_run.nats, rtol=1e-5)
    np.testing.assert_allclose(two_run.grad_norm, one_run.grad_norm, rtol=1e-5)
    for (whole,), parts in zip(read_memory(one), read_memory(two), strict=True):
        empty = np.all(whole == 0, axis=-1)
        assert 0 < empty.mean() < 1
        np.testing.assert_array_equal(np.all(np.concatenate(parts) == 0, axis=-1), empty)


@pytest.fixture(scope="module")
def dropped(two_replicas):
    """Where dropout made zeros in the memory of layer 0: (replica, step, B/R, T, D) bool.

    Every lane reads the same token over and over, so that only the masks differ.
    """
    config = dataclasses.replace(TRAINING, mem_len=2 * TGT_LEN)
    trainer = make_trainer(two_replicas, DROPPING, config)
    run_steps(trainer, [2], make_lanes(config, Text(np.full(97, 13))))
    zeros = np.array(read_memory(trainer)[0]) == 0  # (R, B/R, 2 T, D)
    return zeros.reshape(2, BATCH // 2, 2, TGT_LEN, MODEL.d_model).swapaxes(1, 2)


def test_replicas_drop_different_entries(dropped):
    assert 0 < dropped.mean() < 1
    for step in range(2):
        # Independent masks with rate .3 differ in 42% of the entries.
        assert (dropped[0, step] != dropped[1, step]).mean() > 0.2


def test_steps_drop_different_entries(dropped):
    for replica in range(2):
        assert (dropped[replica, 0] != dropped[replica, 1]).mean() > 0.2  # as above


def test_a_batch_that_replicas_cannot_share_is_refused(two_replicas):
    config = dataclasses.replace(TRAINING, train_batch_size=7)
    with pytest.raises(
        UserError, match=r"divisible by .* replicas. Received: train_batch_size=7, 2 replicas"
    ):
        make_trainer(two_replicas, config=config)
