"""What `--remat` is for. In a process of its own, as XLA reads its flags once."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_remat_takes_much_of_the_memory_of_a_step_away():
    command = [sys.executable, "-m", "benchmarks.memory", "--n_layer=4", "--d_model=32"]
    done = subprocess.run(
        [*command, "--tgt_len=32", "--dropout=0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sizes = dict(re.findall(r"^(without|with) remat +([\d.]+)$", done.stdout, flags=re.MULTILINE))
    # Of four layers the inside of one at a time is held, and what is between them.
    assert 0 < float(sizes["with"]) < 0.6 * float(sizes["without"])
