"""The memory of a training step: what `--remat` is for, and the estimate beside XLA's account."""

import json
import subprocess
import sys

import pytest
from measured_steps import CASES, GENERATION
from places import ROOT

from benchmarks import memory

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sizes():
    """The account of XLA and the estimate of each case, in bytes."""
    command = [sys.executable, "-m", "tests.helpers.measured_steps"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_remat_takes_much_of_the_memory_of_a_step_away(sizes):
    # Of four layers the inside of one at a time is held, and what is between them.
    assert 0 < sizes["plain, remat"][0] < 0.6 * sizes["plain"][0]


def test_dropout_takes_no_memory(sizes):
    for remat in ("", ", remat"):
        assert sizes[f"dropout{remat}"][0] < 1.05 * sizes[f"plain{remat}"][0]


@pytest.mark.parametrize("name", [*(case.name for case in CASES), *GENERATION])
def test_the_estimate_is_the_account_of_the_compiler_within_a_tenth(sizes, name):
    measured, estimate = sizes[name]
    assert estimate == pytest.approx(measured, rel=0.1)


def run_main(*arguments):
    return memory.main(["memory.py", *arguments])


def test_the_default_set_fails_if_an_estimate_is_off_by_more_than_a_tenth(monkeypatch, capsys):
    monkeypatch.setattr(memory, "list_cases", lambda: CASES[:2])
    estimates = {False: 1.09, True: 1.11}

    def measure(model, training, _):
        from txl_tf.training.step_memory import estimate_activations

        parts = estimate_activations(model, training, is_widened=True)
        return sum(parts.values()) / estimates[training.remat]

    monkeypatch.setattr(memory, "measure_step", measure)
    assert run_main() == 1
    out, error = capsys.readouterr()
    assert "+9.0%" in out
    assert error == "memory.py: an estimate is off by 11.0%, more than 10%\n"
    monkeypatch.setattr(memory, "list_cases", lambda: CASES[:1])
    assert run_main() == 0


def test_a_preset_is_estimated_by_part_without_a_compilation(monkeypatch, capsys):
    monkeypatch.delattr(memory, "measure_step")
    assert run_main("--preset=wt103_base", "--remat=false", "--measure=false") == 0
    head, total, *parts = capsys.readouterr().out.splitlines()
    assert head.split() == ["estimate,", "MiB", "measured,", "MiB", "error"]
    assert float(total.split()[-1]) == pytest.approx(
        sum(float(line.split()[-1]) for line in parts), abs=1
    )


@pytest.mark.parametrize("flag", ["--d_model=64", "--shape=words", "--dropout=0"])
def test_a_preset_goes_without_sizes(flag, capsys):
    assert run_main("--preset=wt103_base", flag) == 1
    assert "--preset goes without" in capsys.readouterr().err
