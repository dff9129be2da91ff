import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from golden_cases import NAMES, load_case

from txl_tf.release.checkpoint import SCOPE, list_entries, load_model

SCRIPT = Path(__file__).with_name("jax_golden.py")
ROOT = SCRIPT.parents[1]
# float32, summed in another order; the golden numbers themselves hold 2e-5 and 1e-4.
LOSS_TOLERANCE = 2e-5
GRADIENT_TOLERANCE = 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_numbers_on_jax_are_those_of_the_2019_code(name, tmp_path):
    """Losses, memories, gradients and evaluations, in a process without tensorflow."""
    case = load_case(name)
    entries = list(list_entries(load_model(case.checkpoint, case.config)))
    results = run_on_jax(name, {entry.target.path: entry.target for entry in entries}, tmp_path)
    assert results["backend"] == "jax"
    assert "txl_tf" in results["modules"]
    assert "tensorflow" not in results["modules"]
    keys = {SCOPE + entry.source: f"grad/{entry.target.path}" for entry in entries}
    compared = set()
    for key, expected in case.golden.items():
        if key == "tokens":
            continue
        is_gradient = key.startswith("grad/")
        computed = keys[key.removeprefix("grad/")] if is_gradient else key
        tolerance = GRADIENT_TOLERANCE if is_gradient else LOSS_TOLERANCE
        np.testing.assert_allclose(results[computed], expected, rtol=0, atol=tolerance, err_msg=key)
        compared.add(computed)
    assert compared == results.keys() - {"backend", "modules"}


def run_on_jax(name, weights, folder):
    """Returns what jax_golden.py computes for a case with these weights."""
    np.savez(folder / "weights.npz", **weights)
    search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # compiling takes all the time here
        "PYTHONPATH": search,
    }
    ran = subprocess.run(
        [sys.executable, SCRIPT, name, folder / "weights.npz", folder / "results.npz"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    with np.load(folder / "results.npz") as results:
        return dict(results)
