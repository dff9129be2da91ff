"""Moving averages of the weights: in a run, in its checkpoints, in evaluations."""

import contextlib
import dataclasses
import io
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from small_runs import AVERAGING, CONFIG, make_checkpointer, make_trainer, perturb, train
from tables import slow_after

import txl_tf
from txl_tf.config.training import RunOptions
from txl_tf.errors import UserError
from txl_tf.programs.cli.evaluation import evaluate_checkpoints
from txl_tf.runs.checkpoint import load_weights
from txl_tf.runs.checkpoint_choice import find_checkpoint, list_checkpoints
from txl_tf.scoring.evaluator import Evaluator
from txl_tf.training.averages import use_averages
from txl_tf.training.job import TrainJob

# Few steps at a high rate: averages and weights then have other losses.
RUN = dataclasses.replace(CONFIG, training=dataclasses.replace(AVERAGING, train_steps=7))


@pytest.fixture(scope="module")
def trainer(two_replicas):
    """Two replicas on which no average is its weight."""
    trainer = make_trainer(two_replicas, RUN.model, AVERAGING)
    perturb(trainer)
    for weight, _ in trainer.optimizer.averaged_weights:
        weight.assign(weight.numpy() / 3)
    return trainer


def read_locals(trainer):
    """Returns weights and averages as bits, for each replica."""
    read = trainer.strategy.experimental_local_results
    return [
        [[local.numpy().tobytes() for local in read(variable.value)] for variable in pair]
        for pair in trainer.optimizer.averaged_weights
    ]


def test_averages_take_the_place_of_the_weights_even_in_an_error(trainer):
    before = read_locals(trainer)
    assert all(weight != average for weight, average in before)
    inside = []

    def fail():
        with use_averages(trainer.optimizer):
            inside.extend(read_locals(trainer))
            raise UserError("damaged")

    with pytest.raises(UserError, match="damaged"):
        fail()
    assert [weight for weight, _ in inside] == [average for _, average in before]
    assert read_locals(trainer) == before


@pytest.mark.parametrize("is_ema", [True, False])
def test_weights_are_loaded_as_averages_or_raw(tmp_path, trainer, is_ema):
    path = make_checkpointer(tmp_path, trainer).save()
    model = txl_tf.TransformerXL(trainer.model.config, seed=11)
    assert load_weights(model, path, use_ema=is_ema) is is_ema
    for loaded, pair in zip(
        model.trainable_variables, trainer.optimizer.averaged_weights, strict=True
    ):
        np.testing.assert_array_equal(loaded.numpy(), pair[is_ema].numpy(), err_msg=loaded.path)


def test_of_a_checkpoint_without_averages_the_weights_are_loaded(saved):
    model_dir, run, _ = saved
    model = txl_tf.TransformerXL(run.model.config, seed=11)
    assert load_weights(model, find_checkpoint(str(model_dir))) is False
    for loaded, weight in zip(model.weights, run.model.weights, strict=True):
        np.testing.assert_array_equal(loaded.numpy(), weight.numpy(), err_msg=weight.path)


@pytest.fixture(scope="module", params=slow_after(1, [True, False]))
def use_ema(request):
    return request.param


@pytest.fixture(scope="module")
def trained(use_ema, one_replica, records, tmp_path_factory):
    """The folder of a run that was evaluated on its way, and what it printed."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    with contextlib.redirect_stdout(io.StringIO()) as out:
        train(one_replica, records, folder, RUN, eval_every=3, use_ema=use_ema)
    return folder, out.getvalue()


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def score_checkpoint(records, path, *, use_ema):
    model = txl_tf.TransformerXL(RUN.model)
    load_weights(model, path, use_ema=use_ema)
    return Evaluator(model, RUN.evaluation).score(records.split("valid")).nats_per_token


def test_evaluations_in_training_use_the_averages(use_ema, trained, records):
    folder, out = trained
    found = read_lines(folder / "validation.jsonl")[-1]
    assert found["step"] == 7
    same, other = (
        score_checkpoint(records, find_checkpoint(str(folder)), use_ema=kind)
        for kind in (use_ema, not use_ema)
    )
    # The same operations on the same weights; those of the others differ in the second digit.
    assert found["loss_nats"] == pytest.approx(same, rel=1e-6)
    assert found["loss_nats"] != pytest.approx(other, rel=1e-3)
    kind = "averaged weights" if use_ema else "weights"
    assert f"\nEvaluations use the {kind} (ema 0.8).\n" in out


def test_a_checkpoint_is_evaluated_by_its_averages(use_ema, trained, records, tmp_path, capsys):
    run = shutil.copytree(trained[0], tmp_path / "run")
    job = TrainJob(str(run), records, RUN, RunOptions(use_ema=use_ema))
    (score,) = evaluate_checkpoints(job, jit="none")
    # The steps of training and this evaluation may be fused otherwise.
    expected = read_lines(run / "validation.jsonl")[-1]["loss_nats"]
    assert score.nats_per_token == pytest.approx(expected, rel=1e-6)
    averaged = ", averaged weights" if use_ema else ""
    assert f"\nvalid at step 7{averaged}: loss " in capsys.readouterr().out
    (line,) = read_lines(run / "evaluations.jsonl")
    assert line["is_averaged"] is use_ema


def test_evaluations_of_averages_change_nothing_of_the_training(
    trained, one_replica, records, tmp_path
):
    train(one_replica, records, tmp_path / "run", RUN)
    readers = [
        tf.train.load_checkpoint(find_checkpoint(str(folder)))
        for folder in (trained[0], tmp_path / "run")
    ]
    for name in readers[0].get_variable_to_shape_map():
        if "VARIABLE_VALUE" in name and "run_id" not in name:
            one, other = (reader.get_tensor(name) for reader in readers)
            np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.mark.slow
def test_a_warm_start_takes_the_averages_and_begins_new_ones(
    use_ema, trained, one_replica, records, tmp_path, capsys
):
    path = find_checkpoint(str(trained[0]))
    # One step at rate 0 leaves the weights that it began with.
    config = dataclasses.replace(
        RUN, training=dataclasses.replace(AVERAGING, warmup_steps=1, train_steps=1)
    )
    train(one_replica, records, tmp_path / "two", config, warm_start_path=path, use_ema=use_ema)
    kind = "averaged weights" if use_ema else "weights"
    assert f"Warm start from the {kind} of {path}." in capsys.readouterr().out
    old, new = (txl_tf.TransformerXL(RUN.model, seed=seed) for seed in (5, 7))
    load_weights(old, path, use_ema=use_ema)
    ((_, first),) = list_checkpoints(str(tmp_path / "two"))
    for kind in (True, False):
        load_weights(new, first, use_ema=kind)
        for one, other in zip(new.weights, old.weights, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7, err_msg=one.path)
