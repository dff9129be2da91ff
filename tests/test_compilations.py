"""After the first call XLA compiles nothing more, for every preset, counted by what it writes."""

import json
import os
import subprocess
import sys

import pytest
from places import ROOT

from txl_tf import presets

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "tests" / "helpers" / "compilations.py"
# Bytes; words with cutoffs, whose tables are of one width and of several.
CHAINS = [
    f"{name}:{precision}"
    for name in ("enwik8_base", "wt103_base", "lm1b_base")
    for precision in ("float32", "bfloat16")
]


def find_presets():
    """Returns a preset for each structure that the presets have; the others differ in sizes."""
    found = {}
    for name in presets.names():
        preset = presets.get(name)
        model, optimizer = preset.model, preset.training.optimizer
        is_tied = model.proj_share_all_but_first, model.proj_same_dim
        structure = (len(model.cutoffs), model.div_val, is_tied, model.untie_r, optimizer)
        found.setdefault(structure, name)
    return sorted(found.values())


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    """What is compiled in each case, by its name; counted in a process of its own."""
    flags = f"--xla_dump_to={tmp_path_factory.mktemp('dump')} --xla_backend_optimization_level=0"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    ran = subprocess.run(
        [sys.executable, SCRIPT, *find_presets(), *CHAINS],
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", find_presets())
def test_no_use_of_a_model_compiles_after_its_first_call(name, counts):
    counts = counts[name]
    for use in ("training", "evaluation", "scoring", "generation", "continuations"):
        first, later = counts[use]
        assert first >= 1, use  # else nothing was counted
        assert later == 0, use
    # What is exported is not compiled: it takes any shape.
    assert counts["exported scoring"] == [0, 0]
    assert counts["exported generation"][1] == 0


@pytest.mark.parametrize("case", CHAINS)
def test_no_step_compiles_a_chain_after_its_first_call(case, counts):
    # The first call has tokens of every bin: a bin compiles its chains when it gets its first.
    for use, (first, later) in counts[case].items():
        assert first > 1, use  # several chains, and not the step as a whole
        assert later == 0, use
