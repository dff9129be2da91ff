"""What `--remat` is for. In a process of its own, as XLA reads its flags once."""

import os
import re
import subprocess
import sys

import pytest
from places import ROOT


def measure_memory(*arguments):
    """Returns the account of XLA and the estimate, in MiB, without remat and with."""
    command = [sys.executable, "-m", "benchmarks.memory", "--n_layer=4", "--d_model=32"]
    done = subprocess.run(
        [*command, "--tgt_len=32", *arguments],
        cwd=ROOT,
        # It spares LLVM some work, and changes nothing about where XLA puts its buffers.
        env=os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pattern = r"^(without|with) remat +([\d.]+) +([\d.]+)$"
    rows = re.findall(pattern, done.stdout, flags=re.MULTILINE)
    return {name: (float(found), float(estimate)) for name, found, estimate in rows}


@pytest.fixture(scope="module")
def plain():
    return measure_memory("--dropout=0")


def test_remat_takes_much_of_the_memory_of_a_step_away(plain):
    # Of four layers the inside of one at a time is held, and what is between them.
    assert 0 < plain["with"][0] < 0.6 * plain["without"][0]


@pytest.fixture(scope="module")
def dropping():
    return measure_memory("--dropout=0.1")


def test_dropout_takes_no_memory(plain, dropping):
    for name in ("without", "with"):
        assert dropping[name][0] < 1.05 * plain[name][0]


def test_the_estimate_is_near_the_account_of_the_compiler(plain, dropping):
    for found, estimate in [*plain.values(), *dropping.values()]:
        assert 0.6 < estimate / found < 1.5
