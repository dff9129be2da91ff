"""After the first call XLA compiles nothing more, counted by what it writes."""

import json
import os
import subprocess
import sys

import pytest
from places import ROOT

SCRIPT = ROOT / "tests" / "helpers" / "compilations.py"
# Characters with Muon; words whose tables have several widths, with Lamb.
PRESETS = ("demo", "wt103_large_lamb")
CHAINS = "lm1b_base:bfloat16"


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    """What is compiled in each case, by its name; counted in a process of its own."""
    flags = f"--xla_dump_to={tmp_path_factory.mktemp('dump')} --xla_backend_optimization_level=0"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    ran = subprocess.run(
        [sys.executable, SCRIPT, *PRESETS, CHAINS],
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_no_use_of_a_model_compiles_after_its_first_call(name, counts):
    counts = counts[name]
    for use in ("training", "evaluation", "scoring", "generation", "continuations"):
        first, later = counts[use]
        assert first >= 1, use  # else nothing was counted
        assert later == 0, use
    # What is exported is not compiled: it takes any shape.
    assert counts["exported scoring"] == [0, 0]
    assert counts["exported generation"][1] == 0


@pytest.mark.slow
def test_no_step_compiles_a_chain_after_its_first_call(counts):
    # The first call has tokens of every bin: a bin compiles its chains when it gets its first.
    for use, (first, later) in counts[CHAINS].items():
        assert first > 1, use  # several chains, and not the step as a whole
        assert later == 0, use
