"""Runs a script of this folder on the JAX backend, in a process of its own."""

import os
import subprocess
import sys

import numpy as np
from places import ROOT


def run_on_jax(script, weights, folder):
    """Returns what a script of this folder computes with these weights.

    It runs on a CPU, or on the platform that the environment variable `JAX_PLATFORMS` names.
    """
    np.savez(folder / "weights.npz", **weights)
    search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    platform = os.environ.get("JAX_PLATFORMS", "cpu")
    environment = {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": platform,
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",  # a GPU would multiply in TF32
        # On a CPU, compiling takes all the time.
        "JAX_DISABLE_MOST_OPTIMIZATIONS": str(int(platform == "cpu")),
        "PYTHONPATH": search,
    }
    ran = subprocess.run(
        [
            sys.executable,
            ROOT / "tests" / "helpers" / script,
            folder / "weights.npz",
            folder / "results.npz",
        ],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    with np.load(folder / "results.npz") as results:
        return dict(results)
