"""The training program from its command line to its files, on tiny records."""

import dataclasses
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from called_programs import drop_banner
from small_commands import (
    N_TOKEN,
    N_VALID,
    PROGRAM,
    make_arguments,
    read_log,
    read_scores,
    read_weights,
    run_main,
    write_data,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import txl_tf
from tests.soak import kill_resume
from txl_tf.data import open_records
from txl_tf.programs import train
from txl_tf.runs.checkpoint_choice import list_checkpoints
from txl_tf.runs.folder import read_run_config


@pytest.fixture
def data_dir(tmp_path):
    return write_data(tmp_path / "data")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Records and the folder of a run of 12 steps with checkpoints of 4, 8 and 12."""
    folder = tmp_path_factory.mktemp("finished")
    write_data(folder / "data")
    assert run_main(folder / "data", folder / "run") == 0
    return folder


@pytest.fixture
def run_copy(finished, tmp_path):
    """A copy of the finished run, to be changed."""
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.slow
def test_the_program_trains_and_evaluates_from_the_command_line(data_dir, tmp_path):
    arguments = make_arguments(data_dir, tmp_path / "run", "--do_eval", "--jit=whole")
    done = subprocess.run(
        [sys.executable, PROGRAM, *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, drop_banner(done.stderr)) == (0, "")
    assert [step for step, _ in read_scores(done.stdout)] == [12]
    assert f"{N_VALID - 1} tokens" in done.stdout
    assert [record["step"] for record in read_log(tmp_path / "run")] == [4, 8, 12]


@pytest.mark.slow
def test_a_killed_run_resumes_bit_for_bit(capsys):
    assert kill_resume.main(["kill_resume.py", "--kills=1", "--kinds=plain", "--steps=60"]) == 0
    assert "| plain | 1 |" in capsys.readouterr().out


def test_a_finished_run_says_so_and_changes_nothing(run_copy, capsys):
    before = [variable.tolist() for variable in read_weights(run_copy / "run")]
    assert run_main(run_copy / "data", run_copy / "run") == 0
    assert "All 12 steps are done." in capsys.readouterr().out
    assert [variable.tolist() for variable in read_weights(run_copy / "run")] == before
    assert [record["step"] for record in read_log(run_copy / "run")] == [4, 8, 12]


def test_every_checkpoint_from_a_step_on_is_evaluated(finished, capsys):
    arguments = ("--do_eval_only", "--start_eval_steps=8")
    assert run_main(finished / "data", finished / "run", *arguments) == 0
    scores = read_scores(capsys.readouterr().out)
    assert [step for step, _ in scores] == [8, 12]
    assert scores[0][1] != scores[1][1]


def test_an_evaluation_keeps_what_the_run_compiles(run_copy, monkeypatch):
    path = run_copy / "run" / "config.json"
    path.write_text(path.read_text().replace('"jit": "auto"', '"jit": "none"'))
    modes = []
    target = "txl_tf.programs.cli.evaluation.evaluate_checkpoints"
    monkeypatch.setattr(target, lambda *_, jit, **__: modes.append(jit))
    for flag in ((), ("--jit=whole",)):
        arguments = ("--do_train=false", "--do_eval", *flag)
        assert run_main(run_copy / "data", run_copy / "run", *arguments) == 0
    assert modes == ["none", "whole"]


def test_an_evaluation_of_some_batches_says_that_it_is_not_whole(finished, capsys):
    arguments = ("--do_train=false", "--do_eval", "--max_eval_batch=3")
    assert run_main(finished / "data", finished / "run", *arguments) == 0
    assert "| 30 tokens of " in capsys.readouterr().out


def test_a_run_without_its_newest_checkpoint_resumes_from_the_one_before(run_copy, capsys):
    for path in (run_copy / "run" / "checkpoints").glob("ckpt-12.*"):
        path.unlink()
    warm_start = "--warm_start_path=none/ckpt-3"  # need not be there any more
    assert run_main(run_copy / "data", run_copy / "run", warm_start) == 0
    message = "Resuming from step 8. --warm_start_path is ignored: it is for new runs"
    assert message in capsys.readouterr().out
    assert [record["step"] for record in read_log(run_copy / "run")] == [4, 8, 12]
    assert [step for step, _ in list_checkpoints(str(run_copy / "run"))] == [4, 8, 12]


def test_a_training_that_diverges_is_one_line(data_dir, tmp_path, capsys):
    assert run_main(data_dir, tmp_path / "run", "--learning_rate=1e30") == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("train_gpu.py: ")
    assert "is not finite at step 11: more than max_bad_steps=10 in a row" in line


def read_dry_run(out):
    """Returns what stands behind each name."""
    return dict(line.split(maxsplit=1) for line in out.splitlines()[1:] if line[0] != " ")


def test_a_dry_run_describes_a_new_run_and_makes_nothing(data_dir, tmp_path, capsys):
    arguments = ("--dry_run", "--do_eval", "--eval_every=5", "--cpu_replicas=3")
    assert run_main(data_dir, tmp_path / "run", *arguments) == 0
    out = capsys.readouterr().out
    found = read_dry_run(out)
    config = txl_tf.ModelConfig(
        n_token=N_TOKEN, n_layer=1, d_model=8, d_embed=8, n_head=3, d_head=5, d_inner=13
    )
    assert found["parameters"].startswith(f"{config.count_parameters():,}: embedding 88, layers ")
    weights = f"{4 * config.count_parameters() / 2**10:.1f} KiB"
    assert found["memory"].startswith(f"on each of 3 replicas with 1 lane: weights {weights}, ")
    assert "KiB by XLA's account, for --jit=whole, not for --jit=none\n" in out
    assert found["step"] == "15 tokens, 3 lanes of 5"
    assert found["run"].startswith("step 0 to 12: 180 tokens, 0.60 epochs, 20 steps an epoch")
    assert found["start"] == "new weights, seed 0"
    assert found["evaluation"].startswith("every 5 steps and at the end, after training: 100 tok")
    assert not (tmp_path / "run").exists()


def list_all(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_dry_run_describes_a_resumed_run_and_changes_nothing(finished, capsys):
    before = list_all(finished)
    assert run_main(finished / "data", finished / "run", "--train_steps=17", "--dry_run") == 0
    found = read_dry_run(capsys.readouterr().out)
    assert found["start"] == f"restores {finished / 'run' / 'checkpoints' / 'ckpt-12'}"
    assert found["run"].startswith("step 12 to 17: 75 tokens, ")
    assert found["schedule"].startswith("train_steps is now 17 instead of 12: ")
    assert found["evaluation"] == "none"
    assert list_all(finished) == before


def read_samples(model_dir):
    events = EventAccumulator(str(model_dir / "events" / "validation"))
    events.Reload()
    if "sample" not in events.Tags()["tensors"]:
        return {}
    return {
        event.step: tf.make_ndarray(event.tensor_proto).item().decode()
        for event in events.Tensors("sample")
    }


@pytest.mark.slow
def test_samples_are_shown_and_change_no_number_of_the_training(data_dir, tmp_path):
    runs = tmp_path / "with", tmp_path / "without"
    for run, count in zip(runs, (7, 0), strict=True):
        flags = ("--eval_every=6", "--iterations=1", "--ema=0.9", f"--sample_tokens={count}")
        assert run_main(data_dir, run, *flags) == 0
    samples = read_samples(runs[0])
    assert set(samples) == {6, 12}
    prompt = open_records(data_dir).split("valid").read(0, 32)
    words = " ".join(f"w{index}" for index in prompt)
    assert all(text.startswith(f"Prompt:\n\n    {words}") for text in samples.values())
    assert not read_samples(runs[1])
    losses = [[line["loss_nats"] for line in read_log(run)] for run in runs]
    assert losses[0] == losses[1]
    for one, other in zip(*map(read_weights, runs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_other_settings_start_a_new_run_from_the_weights(run_copy, capsys):
    flags = ("--learning_rate=0.02", "--dropout=0", "--eval_every=5")
    assert run_main(run_copy / "data", run_copy / "run", *flags) == 1
    line = capsys.readouterr().err.strip()
    assert "learning_rate is 0.01 there and 0.02 here. Choose another folder. " in line
    folder, start = shlex.split(line.partition("A new run can start with its weights: ")[2])
    new = folder.removeprefix("--model_dir=").replace("NEW_DIR", str(run_copy / "new"))
    assert run_main(run_copy / "data", new, *flags, start) == 0
    checkpoint = run_copy / "run" / "checkpoints" / "ckpt-12"
    assert f"Warm start from the weights of {checkpoint}." in capsys.readouterr().out
    old, new = (read_run_config(str(run_copy / name)) for name in ("run", "new"))
    assert new.model == dataclasses.replace(old.model, dropout=0.0)
    assert new.training == dataclasses.replace(old.training, learning_rate=0.02)


def test_a_warm_start_takes_the_model_of_its_checkpoint(finished, tmp_path, capsys):
    path = finished / "run" / "checkpoints" / "ckpt-12"
    small = ("--tgt_len=3", "--mem_len=4", "--train_batch_size=2", "--train_steps=2", "--jit=none")
    places = [f"--data_dir={finished / 'data'}", f"--model_dir={tmp_path / 'new'}"]
    arguments = [*places, f"--warm_start_path={path}", "--dropatt=0.3", *small]
    assert train.main(["x", *arguments]) == 0
    assert f"The model is that of {finished / 'run'}, except for flags" in capsys.readouterr().out
    model = read_run_config(str(finished / "run")).model
    assert read_run_config(str(tmp_path / "new")).model == dataclasses.replace(model, dropatt=0.3)


def test_a_checkpoint_that_training_will_make_can_be_evaluated(data_dir, tmp_path, capsys):
    path = f"--eval_ckpt_path={tmp_path / 'run' / 'checkpoints' / 'ckpt-8'}"
    assert run_main(data_dir, tmp_path / "run", "--do_eval", path) == 0
    assert [step for step, _ in read_scores(capsys.readouterr().out)] == [8]
