"""XLA's account of the activations of a step."""

import dataclasses

import pytest
import small_lstm
from small_runs import DROPPING, MODEL, TRAINING
from tables import slow_after

from txl_tf.errors import UserError
from txl_tf.training.dry_run import compile_activations

LONG = dataclasses.replace(TRAINING, tgt_len=32, mem_len=32)


@pytest.fixture(scope="module")
def plain():
    return compile_activations(MODEL, LONG)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "n_replicas"),
    slow_after(1, [({"accumulate_steps": 3}, 1), ({"remat": True}, 1), ({}, 2)]),
)
def test_activations_shrink_with_remat_parts_and_replicas(change, n_replicas, plain):
    less = compile_activations(MODEL, dataclasses.replace(LONG, **change), n_replicas)
    assert 0 < less < 0.9 * plain


@pytest.mark.slow
def test_dropout_takes_no_memory(plain):
    assert compile_activations(DROPPING, LONG) < 1.05 * plain


@pytest.mark.slow
def test_an_lstm_has_an_account():
    assert compile_activations(small_lstm.CONFIG, dataclasses.replace(LONG, mem_len=0)) > 0


@pytest.mark.slow
def test_half_of_the_loss_has_fewer_logits():
    wide = dataclasses.replace(MODEL, n_token=5003)
    half = compile_activations(wide, dataclasses.replace(LONG, half_loss=True))
    assert half < 0.7 * compile_activations(wide, LONG)


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_told_in_one_line():
    huge = dataclasses.replace(MODEL, d_model=2**20, d_embed=2**20, d_inner=2**20)
    with pytest.raises(UserError, match=r"memory") as caught:
        compile_activations(huge, LONG)
    assert "\n" not in str(caught.value)
