"""The memory of a training step: what `--remat` is for, and the estimate beside XLA's account."""

import json
import subprocess
import sys

import pytest
from measured_steps import CASES, GENERATION
from places import ROOT


@pytest.fixture(scope="module")
def sizes():
    """The account of XLA and the estimate of each case, in bytes."""
    command = [sys.executable, "-m", "tests.helpers.measured_steps"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_remat_takes_much_of_the_memory_of_a_step_away(sizes):
    # Of four layers the inside of one at a time is held, and what is between them.
    assert 0 < sizes["plain, remat"][0] < 0.6 * sizes["plain"][0]


@pytest.mark.slow
def test_dropout_takes_no_memory(sizes):
    for remat in ("", ", remat"):
        assert sizes[f"dropout{remat}"][0] < 1.05 * sizes[f"plain{remat}"][0]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(case.name for case in CASES), *GENERATION])
def test_the_estimate_is_the_account_of_the_compiler_within_a_tenth(sizes, name):
    measured, estimate = sizes[name]
    assert estimate == pytest.approx(measured, rel=0.1)
