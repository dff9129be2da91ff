"""A run with `remat` makes the steps of one without, on replicas and in parts of the batch."""

import dataclasses

import numpy as np
import pytest
from small_runs import (
    DOCUMENTS,
    DROPPING,
    RESETTING,
    make_lanes,
    make_trainer,
    read_memory,
    read_variables,
    run_steps,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("jit", ["none", "chains", "whole"])
def test_a_run_with_remat_makes_the_steps_of_one_without(two_replicas, jit):
    runs = []
    for remat in (False, True):
        config = dataclasses.replace(RESETTING, accumulate_steps=3, remat=remat)
        trainer = make_trainer(two_replicas, DROPPING, config, jit=jit)
        assert trainer.model.remat is remat
        runs.append((run_steps(trainer, [2, 7], make_lanes(config, DOCUMENTS)), trainer))
    (expected, plain), (found, trainer) = runs
    # float32, summed in another order by a compiler, over 7 steps; other masks would change the
    # losses by percents.
    np.testing.assert_allclose(found.nats, expected.nats, rtol=1e-5)
    np.testing.assert_allclose(found.grad_norm, expected.grad_norm, rtol=1e-4)
    np.testing.assert_allclose(read_memory(trainer), read_memory(plain), atol=1e-4)
    moments, others = read_variables(plain), read_variables(trainer)
    for path in [path for path in moments if path.endswith("_momentum")]:
        np.testing.assert_allclose(others[path], moments[path], atol=1e-6, err_msg=path)
