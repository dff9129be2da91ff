"""Training an LSTM: it learns, and does not depend on the replicas."""

import dataclasses

import numpy as np
import pytest
from small_checkpoints import Bare, make_checkpointer
from small_lstm import CONFIG
from small_runs import (
    BATCH,
    DOCUMENTS,
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

MODEL = dataclasses.replace(CONFIG, init_std=0.5, proj_init_std=0.5)
CARRYING = dataclasses.replace(TRAINING, mem_len=0)
PERIODIC = dataclasses.replace(CARRYING, learning_rate=0.03, train_steps=300)
RESETTING_LSTM = dataclasses.replace(RESETTING, mem_len=0)


def test_a_period_longer_than_a_segment_is_learned(one_replica):
    """Segments of 5 tokens of a text in which every 7th is 1, and the others 0."""
    lanes = make_lanes(PERIODIC, Text(np.arange(1500) % 7 == 0))
    model = dataclasses.replace(MODEL, cutoffs=(), div_val=1, d_model=16)
    nats = run_steps(make_trainer(one_replica, model, PERIODIC, jit="whole"), [300], lanes).nats
    n_tokens = BATCH * TGT_LEN
    assert nats[:5].mean() / n_tokens > 1
    # Where an epoch begins, the text jumps. Without a state, a 1 after a segment's first 0s would
    # cost log 2 and more.
    assert np.median(nats[-20:]) / n_tokens < 0.05


@pytest.mark.parametrize("jit", ["none", "chains", "whole"])
@pytest.mark.parametrize(
    ("config", "text"), [(CARRYING, None), (RESETTING_LSTM, DOCUMENTS)], ids=["text", "documents"]
)
def test_two_replicas_make_the_steps_of_one(one_replica, two_replicas, config, text, jit):
    lanes = make_lanes(config, text) if text else make_lanes(config)
    one, two = (
        make_trainer(strategy, MODEL, config, jit=jit) for strategy in (one_replica, two_replicas)
    )
    one_run, two_run = (run_steps(trainer, [3, 11], lanes) for trainer in (one, two))
    # Sums in another order, float32, carried through 11 steps.
    np.testing.assert_allclose(two_run.nats, one_run.nats, rtol=1e-5)
    np.testing.assert_allclose(two_run.grad_norm, one_run.grad_norm, rtol=1e-5)
    for (whole,), parts in zip(read_memory(one), read_memory(two), strict=True):
        assert len(whole) == BATCH
        assert np.abs(whole).mean() > 0.01
        np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-3)


def test_parts_of_a_batch_make_the_step_of_the_whole(one_replica):
    parts = dataclasses.replace(CARRYING, accumulate_steps=3)
    runs = [
        run_steps(make_trainer(one_replica, MODEL, config), [5]) for config in (CARRYING, parts)
    ]
    np.testing.assert_allclose(runs[1].nats, runs[0].nats, rtol=1e-5)
    np.testing.assert_allclose(runs[1].grad_norm, runs[0].grad_norm, rtol=1e-5)


def test_the_state_is_carried_from_step_to_step(one_replica):
    trainer = make_trainer(one_replica, MODEL, CARRYING)
    assert not np.any(read_memory(trainer)[0])
    run_steps(trainer, [2])
    memory = read_memory(trainer)
    assert len(memory) == 2 * MODEL.n_layer
    assert all(np.abs(states).max() > 0.01 for (states,) in memory)


def test_weights_of_all_layers_move(one_replica):
    trainer = make_trainer(one_replica, MODEL, CARRYING)
    before = read_variables(trainer)
    run_steps(trainer, [5])
    after = read_variables(trainer)
    for weight in trainer.model.trainable_variables:
        assert np.abs(after[weight.path] - before[weight.path]).max() > 1e-5, weight.path


def test_a_checkpoint_of_a_transformer_is_refused_by_its_type(tmp_path, one_replica):
    run = Bare()
    make_checkpointer(tmp_path, run).save()
    trainer = make_trainer(one_replica, MODEL, CARRYING)
    message = r"another model: model_type is 'transformer_xl' there and 'lstm' here$"
    with pytest.raises(UserError, match=message):
        make_checkpointer(tmp_path, trainer).restore()
