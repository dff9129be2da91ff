"""What XLA compiles is decided when a run starts, and kept when it resumes."""

import shutil

import numpy as np
import pytest
from small_commands import read_weights, run_main, write_data

from txl_tf.programs import train
from txl_tf.runs.folder import read_run_config

pytestmark = pytest.mark.slow

CHAINS = "XLA compiles the chains of operations between the matrix products.\n"
NOTHING = "XLA compiles nothing.\n"


def set_rule(monkeypatch, choice):
    """Has `auto` choose a mode, as if another version had another rule."""
    rule = "txl_tf.training.job.choose_jit"
    monkeypatch.setattr(rule, lambda jit, dtype: choice if jit == "auto" else jit)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 12 steps for which `auto` chose chains, with a checkpoint of 8."""
    folder = tmp_path_factory.mktemp("begun")
    write_data(folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        set_rule(patch, "chains")
        assert run_main(folder / "data", folder / "run", "--jit=auto") == 0
    return folder / "run"


@pytest.fixture
def stopped(whole, tmp_path):
    """The run as it was after 8 steps."""
    run = shutil.copytree(whole, tmp_path / "run")
    for path in (run / "checkpoints").glob("ckpt-12.*"):
        path.unlink()
    return run


def resume(run, *flags):
    arguments = [f"--model_dir={run}", "--iterations=4", "--save_steps=4", *flags]
    return train.main(["train_gpu.py", *arguments])


def read_jit(run):
    return read_run_config(str(run)).training.jit


def test_a_resumed_run_keeps_the_choice_under_another_rule(whole, stopped, monkeypatch, capsys):
    set_rule(monkeypatch, "none")
    assert resume(stopped) == 0
    out = capsys.readouterr().out
    assert "Resuming from step 8." in out
    assert CHAINS in out
    assert "jit is now" not in out
    assert read_jit(stopped) == "chains"
    for found, expected in zip(*map(read_weights, (stopped, whole)), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_choice_changed_on_purpose_is_told_and_kept(stopped, monkeypatch, capsys):
    set_rule(monkeypatch, "none")
    assert resume(stopped, "--jit=auto") == 0
    out = capsys.readouterr().out
    assert NOTHING in out
    assert (
        "jit is now none instead of chains: from step 8 on, numbers may be rounded differently.\n"
    ) in out
    assert read_jit(stopped) == "none"
    set_rule(monkeypatch, "chains")
    assert resume(stopped) == 0
    out = capsys.readouterr().out
    assert NOTHING in out
    assert "jit is now" not in out


def test_a_dry_run_tells_another_choice(stopped, capsys):
    assert resume(stopped, "--dry_run", "--jit=none") == 0
    out = capsys.readouterr().out
    assert "\njit         jit is now none instead of chains: from step 8 on, " in out
    assert "train_steps is now" not in out
    assert read_jit(stopped) == "chains"
