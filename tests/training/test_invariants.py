"""What holds of a run whatever its options are: a table of configs by invariants.

A run repeats its bits if its calls are divided otherwise, or if it is interrupted and resumed; XLA
compiles the whole steps. Replicas, which round otherwise, are compared without XLA.
"""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import small_lstm
import tensorflow as tf
from small_runs import (
    DOCUMENTS,
    DROPPING,
    TEXT,
    TRAINING,
    Text,
    make_checkpointer,
    make_lanes,
    make_trainer,
    perturb,
    read_memory,
    read_variables,
    run_calls,
    run_steps,
)
from tables import slow_after

from txl_tf.config import ModelConfig
from txl_tf.training.intervals import Interval
from txl_tf.training.trainer import Trainer

N_STEPS, SAVED = 7, 3
N_TOKENS = 131  # an epoch is shorter than a run
STARTS = DOCUMENTS.document_starts
SHORT = Text(TEXT.ids[:N_TOKENS], STARTS[STARTS < N_TOKENS])
# A high rate: the weights then move far from where they began.
CONFIG = dataclasses.replace(TRAINING, learning_rate=1e-2)
SHALLOW = dataclasses.replace(DROPPING, n_layer=1)
BINS = dataclasses.replace(SHALLOW, cutoffs=(13,), div_val=2)
LSTM = dataclasses.replace(
    small_lstm.CONFIG, n_layer=1, cutoffs=(13,), dropout=0.3, init_std=0.5, proj_init_std=0.5
)
QRNN = dataclasses.replace(LSTM, model_type="qrnn")
PARTS = {"train_batch_size": 4, "accumulate_steps": 2}


class Row(NamedTuple):
    """A config of the table.

    Args:
        fields: What its training has besides `CONFIG`.
        model: Its model.
        n_lengths: The number of lengths of its segments; random ones are padded to one.
        rtol: How far losses on two replicas may be from those on one: sums in another order,
            float32, carried through the steps. Bounds of norms and weights are multiples of it.
    """

    fields: dict
    model: ModelConfig = SHALLOW
    n_lengths: int = 1
    rtol: float = 1e-5

    @property
    def config(self):
        return dataclasses.replace(CONFIG, **self.fields)

    @property
    def lanes(self):
        return make_lanes(self.config, SHORT)


# Options that do not meet in the code share a row, so that all of them need few runs.
ROWS = {
    "bins_ema_accumulation": Row({"ema": 0.8, **PARTS}, BINS),
    "float16": Row({"precision": "float16"}, rtol=1e-3),  # it has 11 bits
    # The mean begins after the checkpoint, which is in the middle of a stage.
    "staged_muon_mean": Row(
        {
            "tgt_len": 3,
            "tgt_len_schedule": ((2, 3), (5, 2)),
            "average_from": 5,
            "optimizer": "muon",
            "weight_decay": 0.1,
        },
        n_lengths=2,
    ),
    # The mean begins before the checkpoint.
    "random_lengths_adamw_mean": Row(
        {
            "tgt_len": 11,
            "tgt_len_std": 1.0,
            "half_len_rate": 0.5,
            "extra_len": 3,
            "mem_len": 0,
            "average_from": 2,
            "optimizer": "adamw",
            "weight_decay": 0.1,
        }
    ),
    "documents_lamb_remat": Row(
        {
            "reset_at_documents": True,
            "remat": True,
            "ema": 0.9,
            "optimizer": "lamb",
            "weight_decay": 0.1,
        }
    ),
    "extra_context_half_loss": Row(
        {
            "extra_len": 7,
            "mem_len": 0,
            "reset_at_documents": True,
            "half_loss": True,
            "ar": 0.7,
            "tar": 1.3,
        }
    ),
    "lstm": Row({"mem_len": 0, "reset_at_documents": True, "ema": 0.8, **PARTS}, LSTM),
    "qrnn": Row({"mem_len": 0, "reset_at_documents": True}, QRNN),
}


@pytest.fixture(scope="module", params=slow_after(1, ROWS))
def row(request):
    return ROWS[request.param]


class Divided(NamedTuple):
    """A run in calls of several lengths, with dropout, that saved a checkpoint on its way.

    Args:
        calls: What each call returned.
        is_compiled: Whether XLA compiled anything in each call.
        trainer: What made the run.
        folder: Holds the checkpoint.
        variables: The weights and the variables of the optimizer at the end, by path.
        memory: The memory at the end.
    """

    calls: list
    is_compiled: list
    trainer: Trainer
    folder: Path
    variables: dict
    memory: list


@pytest.fixture(scope="module")
def divided(row, one_replica, tmp_path_factory):
    trainer = make_trainer(one_replica, row.model, row.config, jit="whole")
    steps = run_calls(trainer, [1, SAVED, 4, N_STEPS], row.lanes)
    folder, calls, is_compiled = tmp_path_factory.mktemp("run"), [], []
    while trainer.step < N_STEPS:
        profile = folder / f"profile-{trainer.step}"
        with tf.profiler.experimental.Profile(str(profile)):
            calls.append(next(steps))
        is_compiled.append(has_compiled(profile))
        if trainer.step == SAVED:
            make_checkpointer(folder, trainer).save()
    ends = read_variables(trainer), read_memory(trainer)
    return Divided(calls, is_compiled, trainer, folder, *ends)


def has_compiled(profile):
    """Returns whether XLA's compiler was at work in a profile."""
    (path,) = profile.rglob("*.xplane.pb")
    return b"Compiler::Compile" in path.read_bytes()


@pytest.fixture(scope="module")
def resumed(row, divided):
    """The run from the checkpoint on, in one call; every number was another one before."""
    trainer = divided.trainer
    perturb(trainer)
    make_checkpointer(divided.folder, trainer).restore()
    return run_steps(trainer, [N_STEPS], row.lanes)


@pytest.fixture(scope="module")
def replicated(row, one_replica, two_replicas):
    """Runs on one and on two replicas, without dropout: each replica has masks of its own."""
    model = row.model.without_dropout()
    trainers = [
        make_trainer(strategy, model, row.config) for strategy in (one_replica, two_replicas)
    ]
    return [(run_steps(trainer, [N_STEPS], row.lanes), trainer) for trainer in trainers]


def test_each_length_is_traced_and_compiled_once(row, divided):
    assert divided.trainer.run_steps.experimental_get_tracing_count() == row.n_lengths
    assert divided.is_compiled[0]
    assert sum(divided.is_compiled) == row.n_lengths < len(divided.calls)


def test_a_resumed_run_in_other_calls_repeats_every_bit(divided, resumed):
    found, expected = resumed, Interval.join(divided.calls)
    assert len(found.nats) == N_STEPS - SAVED
    for name in ("nats", "tokens", "grad_norm", "learning_rate", "n_read"):
        values = getattr(expected, name)[SAVED:]
        np.testing.assert_array_equal(getattr(found, name), values, err_msg=name)
    variables = read_variables(divided.trainer)
    for path, value in divided.variables.items():
        np.testing.assert_array_equal(variables[path], value, err_msg=path)
    for one, two in zip(read_memory(divided.trainer), divided.memory, strict=True):
        np.testing.assert_array_equal(one, two)


def test_two_replicas_make_the_steps_of_one(row, replicated):
    (one, _), (two, _) = replicated
    np.testing.assert_array_equal(two.tokens, one.tokens)
    np.testing.assert_array_equal(two.n_read, one.n_read)
    np.testing.assert_allclose(two.nats, one.nats, rtol=row.rtol)
    # The norm adds up the errors of all gradients.
    np.testing.assert_allclose(two.grad_norm, one.grad_norm, rtol=10 * row.rtol)


def test_two_replicas_reach_the_weights_and_averages_of_one(row, replicated):
    (_, one), (_, two) = replicated
    expected, found = read_variables(one), read_variables(two)
    averages = [path for path in expected if path.endswith("_average")]
    assert len(averages) == row.config.has_average * len(one.model.weights)
    for path in averages + [weight.path for weight in one.model.weights]:
        # Where a gradient is rounding errors alone, it makes steps up to the rate, 1e-2.
        difference = np.abs(found[path] - expected[path])
        assert difference.max() < 100 * row.rtol, path
        assert difference.mean() < 10 * row.rtol, path


def test_both_replicas_hold_the_same_variables(two_replicas, replicated):
    _, (_, trainer) = replicated
    for variable in trainer.model.weights + trainer.optimizer.variables:
        first, second = two_replicas.experimental_local_results(variable.value)
        np.testing.assert_array_equal(first.numpy(), second.numpy(), err_msg=variable.path)
