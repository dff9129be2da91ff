"""Moving averages of the weights: in a run, in its checkpoints, in evaluations."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from small_checkpoints import make_checkpointer
from small_jobs import CONFIG, make_records, train
from small_runs import (
    AVERAGING,
    make_trainer,
    read_variables,
    run_steps,
)

import txl_tf
from txl_tf.errors import UserError
from txl_tf.evaluation.checkpoints import evaluate_checkpoints
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.runs.checkpoint_files import find_checkpoint, list_checkpoints
from txl_tf.runs.checkpoint_reader import load_weights
from txl_tf.training.averaged_weights import use_averaged_weights

pytestmark = pytest.mark.slow

# Few steps at a high rate: averages and weights then have other losses.
RUN = dataclasses.replace(CONFIG, training=dataclasses.replace(AVERAGING, train_steps=7))


@pytest.fixture(scope="module")
def trained(two_replicas):
    """Two replicas after a few steps: no average is its weight."""
    trainer = make_trainer(two_replicas, config=AVERAGING)
    run_steps(trainer, [5])
    return trainer


def read_locals(trainer):
    """Returns weights and averages as bits, for each replica."""
    read = trainer.strategy.experimental_local_results
    return [
        [[local.numpy().tobytes() for local in read(variable.value)] for variable in pair]
        for pair in trainer.optimizer.averaged_weights
    ]


def test_averages_take_the_place_of_the_weights_and_leave_them_as_they_were(trained):
    before = read_locals(trained)
    assert all(weight != average for weight, average in before)
    with use_averaged_weights(trained.optimizer):
        inside = read_locals(trained)
    assert [weight for weight, _ in inside] == [average for _, average in before]
    assert read_locals(trained) == before


def test_weights_are_as_they_were_after_an_error(trained):
    before = read_locals(trained)
    with pytest.raises(UserError, match="damaged"), use_averaged_weights(trained.optimizer):
        raise UserError("damaged")
    assert read_locals(trained) == before


def test_without_averages_weights_stay(one_replica):
    trainer = make_trainer(one_replica)
    before = read_variables(trainer)
    with use_averaged_weights(trainer.optimizer):
        for path, value in read_variables(trainer).items():
            np.testing.assert_array_equal(value, before[path], err_msg=path)


def test_a_checkpoint_holds_each_average_once_under_the_path_of_its_weight(tmp_path, trained):
    path = make_checkpointer(tmp_path, trained).save()
    names = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    groups = {
        group: {name.removeprefix(group) for name in names if name.startswith(f"{group}/")}
        for group in ("weights", "averages", "optimizer")
    }
    assert groups["averages"] == groups["weights"]
    n_weights = len(trained.model.weights)
    assert len(groups["averages"]) == n_weights
    assert len(groups["optimizer"]) == 1 + 2 * n_weights  # the count, and two moments of each


@pytest.mark.parametrize("is_ema", [True, False])
def test_weights_are_loaded_as_averages_or_raw(tmp_path, trained, is_ema):
    path = make_checkpointer(tmp_path, trained).save()
    model = txl_tf.TransformerXL(trained.model.config, seed=11)
    assert load_weights(model, path, use_ema=is_ema) is is_ema
    for loaded, pair in zip(
        model.trainable_variables, trained.optimizer.averaged_weights, strict=True
    ):
        np.testing.assert_array_equal(loaded.numpy(), pair[is_ema].numpy(), err_msg=loaded.path)


def test_of_a_checkpoint_without_averages_the_weights_are_loaded(saved):
    model_dir, run, _ = saved
    model = txl_tf.TransformerXL(run.model.config, seed=11)
    assert load_weights(model, find_checkpoint(str(model_dir))) is False
    for loaded, weight in zip(model.weights, run.model.weights, strict=True):
        np.testing.assert_array_equal(loaded.numpy(), weight.numpy(), err_msg=weight.path)


@pytest.fixture
def records(tmp_path):
    return make_records(tmp_path / "data")


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def score_checkpoint(records, path, *, use_ema):
    model = txl_tf.TransformerXL(RUN.model)
    load_weights(model, path, use_ema=use_ema)
    return Evaluator(model, RUN.evaluation).score(records.split("valid")).nats_per_token


@pytest.mark.parametrize("use_ema", [True, False])
def test_evaluations_in_training_use_the_averages(use_ema, one_replica, records, tmp_path, capsys):
    train(one_replica, records, tmp_path / "run", RUN, eval_every=3, use_ema=use_ema)
    found = [line["loss_nats"] for line in read_lines(tmp_path / "run" / "validation.jsonl")]
    paths = [path for _, path in list_checkpoints(str(tmp_path / "run"))]
    scores = {
        kind: [score_checkpoint(records, path, use_ema=kind) for path in paths]
        for kind in (True, False)
    }
    # The same operations on the same weights; those of the others differ in the second digit.
    assert found == pytest.approx(scores[use_ema], rel=1e-6)
    assert found != pytest.approx(scores[not use_ema], rel=1e-3)
    kind = "averaged weights" if use_ema else "weights"
    assert f"\nEvaluations use the {kind} (ema 0.8).\n" in capsys.readouterr().out


def test_evaluations_of_averages_change_nothing_of_the_training(one_replica, records, tmp_path):
    for name, every in (("with", 2), ("without", 0)):
        train(one_replica, records, tmp_path / name, RUN, eval_every=every, iterations=1)
    readers = [
        tf.train.load_checkpoint(str(tmp_path / name / "checkpoints" / "ckpt-7"))
        for name in ("with", "without")
    ]
    for name in readers[0].get_variable_to_shape_map():
        if "VARIABLE_VALUE" in name and "run_id" not in name:
            one, other = (reader.get_tensor(name) for reader in readers)
            np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.mark.parametrize("use_ema", [True, False])
def test_a_checkpoint_is_evaluated_by_its_averages(use_ema, one_replica, records, tmp_path, capsys):
    train(one_replica, records, tmp_path / "run", RUN)
    settings = {"model_dir": str(tmp_path / "run"), "split": "valid", "jit": "none"}
    (score,) = evaluate_checkpoints(records, RUN, use_ema=use_ema, **settings)
    path = find_checkpoint(str(tmp_path / "run"))
    expected = score_checkpoint(records, path, use_ema=use_ema)
    assert score.nats_per_token == pytest.approx(expected, rel=1e-6)  # as above
    averaged = ", averaged weights" if use_ema else ""
    assert f"\nvalid at step 7{averaged}: loss " in capsys.readouterr().out
    (line,) = read_lines(tmp_path / "run" / "evaluations.jsonl")
    assert line["is_averaged"] is use_ema


@pytest.mark.parametrize("use_ema", [True, False])
def test_a_warm_start_takes_the_averages_and_begins_new_ones_there(
    use_ema, one_replica, records, tmp_path, capsys
):
    train(one_replica, records, tmp_path / "one", RUN)
    path = find_checkpoint(str(tmp_path / "one"))
    # One step at rate 0 leaves the weights that it began with.
    config = dataclasses.replace(RUN, training=dataclasses.replace(AVERAGING, train_steps=5))
    settings = {"save_steps": 1, "warm_start_path": path, "use_ema": use_ema}
    train(one_replica, records, tmp_path / "two", config, **settings)
    kind = "averaged weights" if use_ema else "weights"
    assert f"Warm start from the {kind} of {path}." in capsys.readouterr().out
    old = score_checkpoint(records, path, use_ema=use_ema)
    first = str(tmp_path / "two" / "checkpoints" / "ckpt-1")
    for kind in (True, False):
        found = score_checkpoint(records, first, use_ema=kind)
        assert found == pytest.approx(old, rel=1e-6)  # as above
