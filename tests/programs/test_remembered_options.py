"""A run that is resumed with no flag but its folder saves, evaluates and stops as before."""

import json
import shlex

import pytest
from small_commands import make_arguments, run_main, write_data

from txl_tf import evaluate, train_gpu
from txl_tf.runs.checkpoint_files import list_checkpoints

FLAGS = ["--eval_every=3", "--save_steps=5", "--iterations=2", "--keep_checkpoints=9"]


def resume(run, *flags):
    return train_gpu.main(["train_gpu.py", f"--model_dir={run}", *flags])


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
    assert train_gpu.main(["train_gpu.py", *arguments]) == 0
    assert read_lines(run / "validation.jsonl")[-1]["step"] < 40
    return run


def test_a_run_resumed_by_its_folder_equals_an_uninterrupted_one(data, tmp_path, capsys):
    assert run_main(data, tmp_path / "whole", *FLAGS) == 0
    assert run_main(data, tmp_path / "parts", *FLAGS, "--max_hours=1e-9") == 3
    capsys.readouterr()
    assert resume(tmp_path / "parts") == 0
    assert " is now " not in capsys.readouterr().out
    runs = [tmp_path / "whole", tmp_path / "parts"]
    losses = [[x["loss_nats"] for x in read_lines(run / "validation.jsonl")] for run in runs]
    assert losses[0] == losses[1]
    steps = [{step for step, _ in list_checkpoints(str(run))} for run in runs]
    assert steps[1] - {1, 2} == steps[0]  # one more was saved when time was up


def test_a_changed_option_is_told_and_kept(data, tmp_path, capsys):
    assert run_main(data, tmp_path / "run", *FLAGS, "--max_hours=1e-9") == 3
    capsys.readouterr()
    assert resume(tmp_path / "run", "--eval_every=4", "--max_hours=1e-9") == 3
    assert "eval_every is now 4 instead of 3.\n" in capsys.readouterr().out
    assert resume(tmp_path / "run") == 0
    assert {line["step"] for line in read_lines(tmp_path / "run/validation.jsonl")} == {4, 8, 12}


def test_an_early_stopped_run_is_not_trained_on_without_patience(early_stopped, capsys):
    n_lines = len(read_lines(early_stopped / "validation.jsonl"))
    assert resume(early_stopped, "--train_steps=60") == 0
    assert "Early stopping: " in capsys.readouterr().out
    assert len(read_lines(early_stopped / "validation.jsonl")) == n_lines


def test_the_command_of_an_early_stop_evaluates_the_best(early_stopped, capsys):
    assert resume(early_stopped) == 0
    command = capsys.readouterr().out.splitlines()[-1].partition("python -m txl_tf.evaluate ")[2]
    assert evaluate.main(["evaluate.py", *shlex.split(command), "--split=valid"]) == 0
    best = min(read_lines(early_stopped / "validation.jsonl"), key=lambda line: line["loss_nats"])
    found = read_lines(early_stopped / "evaluations.jsonl")[-1]
    assert found["step"] == best["step"]
    assert found["loss_nats"] == pytest.approx(best["loss_nats"], rel=1e-5)


@pytest.mark.parametrize("choice", ["best", "newest"])
def test_a_choice_of_checkpoint_reaches_the_evaluation_of_training(early_stopped, capsys, choice):
    flags = ["--do_train=false", "--do_eval", f"--eval_ckpt_path={choice}"]
    assert resume(early_stopped, *flags) == 0
    losses = {x["step"]: x["loss_nats"] for x in read_lines(early_stopped / "validation.jsonl")}
    step = min(losses, key=losses.get) if choice == "best" else max(losses)
    assert f"valid at step {step}: " in capsys.readouterr().out
