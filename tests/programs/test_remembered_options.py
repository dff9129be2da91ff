"""A run that is resumed with no flag but its folder saves, evaluates and stops as before."""

import json
import shlex

import pytest
from small_commands import make_arguments, run_main, write_data

from txl_tf.programs import evaluate, train
from txl_tf.runs.checkpoint_choice import list_checkpoints

pytestmark = pytest.mark.slow

FLAGS = ["--eval_every=3", "--save_steps=5", "--iterations=2", "--keep_checkpoints=9"]


def resume(run, *flags):
    return train.main(["train_gpu.py", f"--model_dir={run}", *flags])


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("words") / "data")


@pytest.fixture(scope="module")
def early_stopped(data):
    """A run whose first evaluation is the best, and the arguments that made it."""
    run = data.parent / "stopped"
    flags = [*FLAGS, "--train_steps=40", "--learning_rate=0.5", "--patience=2"]
    arguments = make_arguments(data, run, *flags)
    assert train.main(["train_gpu.py", *arguments]) == 0
    assert read_lines(run / "validation.jsonl")[-1]["step"] < 40
    return run


def test_a_changed_option_is_told_and_kept(data, tmp_path, capsys):
    run = tmp_path / "run"
    assert run_main(data, run, *FLAGS, "--max_hours=1e-9") == 3
    capsys.readouterr()
    assert resume(run, "--eval_every=4") == 0
    out = capsys.readouterr().out
    assert "eval_every is now 4 instead of 3.\n" in out
    assert out.count(" is now ") == 1
    assert {line["step"] for line in read_lines(run / "validation.jsonl")} == {4, 8, 12}
    assert {5, 10, 12} <= {step for step, _ in list_checkpoints(str(run))}  # save_steps is kept
    assert resume(run, "--train_steps=20", "--dry_run") == 0
    assert "every 4 steps" in capsys.readouterr().out


def test_a_run_stops_after_a_step_and_goes_on(data, tmp_path, capsys):
    run = tmp_path / "run"
    assert run_main(data, run, *FLAGS, "--stop_step=7") == 3
    assert "by stop_step at step 7, which is saved: run it again without" in capsys.readouterr().err
    assert max(step for step, _ in list_checkpoints(str(run))) == 7
    assert resume(run, "--stop_step=7") == 1
    assert "the run is at step 7 already: `stop_step` must be higher" in capsys.readouterr().err
    assert resume(run) == 0
    found = capsys.readouterr().out
    assert "stop_step" not in found
    assert read_lines(run / "log.jsonl")[-1]["step"] == 12


def test_an_early_stopped_run_is_not_trained_on_without_patience(early_stopped, capsys):
    n_lines = len(read_lines(early_stopped / "validation.jsonl"))
    assert resume(early_stopped, "--train_steps=60") == 0
    assert "Early stopping: " in capsys.readouterr().out
    assert len(read_lines(early_stopped / "validation.jsonl")) == n_lines


def test_the_command_of_an_early_stop_evaluates_the_best(early_stopped, capsys):
    assert resume(early_stopped) == 0
    command = capsys.readouterr().out.splitlines()[-1].partition("txl evaluate ")[2]
    assert evaluate.main(["evaluate.py", *shlex.split(command), "--split=valid"]) == 0
    best = min(read_lines(early_stopped / "validation.jsonl"), key=lambda line: line["loss_nats"])
    found = read_lines(early_stopped / "evaluations.jsonl")[-1]
    assert found["step"] == best["step"]
    assert found["loss_nats"] == pytest.approx(best["loss_nats"], rel=1e-5)


def test_training_evaluates_the_best_checkpoint_when_asked(early_stopped, capsys):
    flags = ["--do_train=false", "--do_eval", "--eval_ckpt_path=best"]
    assert resume(early_stopped, *flags) == 0
    losses = {x["step"]: x["loss_nats"] for x in read_lines(early_stopped / "validation.jsonl")}
    assert f"valid at step {min(losses, key=losses.get)}: " in capsys.readouterr().out
