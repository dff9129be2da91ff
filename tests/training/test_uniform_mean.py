"""The uniform mean of the weights: its values, in a run, when it resumes, in evaluations."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_jobs import CONFIG, make_records, train
from small_runs import (
    TRAINING,
    stop_after,
)

import txl_tf
from txl_tf.runs.checkpoint_files import list_checkpoints
from txl_tf.runs.checkpoint_reader import CheckpointReader, load_weights
from txl_tf.training.optimizers.choice import make_optimizer

MEAN = dataclasses.replace(TRAINING, average_from=4, learning_rate=0.02, optimizer="muon")
RUN = dataclasses.replace(CONFIG, training=dataclasses.replace(MEAN, train_steps=7))


def take_steps(n_steps, *, skipped=()):
    """Returns the weight and its mean after each step, with the mean from step 4 on."""
    weight = keras.Variable(np.linspace(-1, 1, 35).reshape(5, 7), name="kernel", dtype="float32")
    optimizer = make_optimizer(dataclasses.replace(MEAN, optimizer="adam", warmup_steps=0))
    rng = np.random.default_rng(3)
    history = []
    for step in range(1, n_steps + 1):
        gradient = tf.constant(rng.normal(size=(5, 7)), tf.float32)
        optimizer.apply([gradient], [weight], is_good=tf.constant(step not in skipped))
        ((_, average),) = optimizer.averaged_weights
        history.append((weight.numpy(), average.numpy()))
    return history


@pytest.mark.parametrize("n_steps", [5, 11])
def test_the_average_is_the_mean_over_the_later_steps(n_steps):
    history = take_steps(n_steps)
    expected = np.mean([weight for weight, _ in history[4:]], axis=0, dtype=np.float64)
    np.testing.assert_allclose(history[-1][1], expected, rtol=1e-5, atol=1e-7)  # float32


def test_until_then_the_average_is_the_weight():
    weight, average = take_steps(4)[-1]
    np.testing.assert_allclose(average, weight, rtol=1e-6, atol=1e-7)  # float32


@pytest.mark.parametrize("skipped", [{5}, {6, 9}])
def test_skipped_steps_do_not_count(skipped):
    history = take_steps(11, skipped=skipped)
    made = [history[step - 1][0] for step in range(5, 12) if step not in skipped]
    expected = np.mean(made, axis=0, dtype=np.float64)
    np.testing.assert_allclose(history[-1][1], expected, rtol=1e-5, atol=1e-7)  # float32


def read_group(path, group):
    reader = CheckpointReader(path)
    return {name: reader.read(group, name) for name in reader.list_shapes(group)}


def compute_mean(model_dir, steps):
    """Returns the mean of the weights in the checkpoints of some steps."""
    paths = dict(list_checkpoints(str(model_dir)))
    weights = [read_group(paths[step], "weights") for step in steps]
    return {name: np.mean([each[name] for each in weights], axis=0) for name in weights[0]}


@pytest.mark.slow
def test_an_extended_run_goes_on_with_its_mean(one_replica, tmp_path, capsys):
    records, run = make_records(tmp_path / "data"), tmp_path / "run"
    options = {"save_steps": 1, "iterations": 1, "keep_checkpoints": 20}
    with stop_after(5):
        train(one_replica, records, run, RUN, **options)
    train(one_replica, records, run, RUN, **options)
    longer = dataclasses.replace(RUN.training, train_steps=11)
    extended = dataclasses.replace(RUN, training=longer)
    train(one_replica, records, run, extended, eval_every=11, **options)
    paths = dict(list_checkpoints(str(run)))
    for step in (7, 11):
        found = read_group(paths[step], "averages")
        assert load_weights(txl_tf.TransformerXL(RUN.model), paths[step]) is True
        for name, expected in compute_mean(run, range(5, step + 1)).items():
            np.testing.assert_allclose(found[name], expected, 1e-5, 1e-6, err_msg=name)  # float32
    assert "\nEvaluations use the averaged weights (average_from 4).\n" in capsys.readouterr().out
