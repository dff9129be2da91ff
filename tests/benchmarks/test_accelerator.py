"""The benchmark of accelerators on the JAX backend."""

import os
import subprocess
import sys

import pytest
from places import ROOT

CODE = """
import sys
sys.modules["tensorflow"] = None  # as if it were not installed
import benchmarks.accelerator
import txl_tf.model
"""


@pytest.mark.slow
def test_benchmark_and_model_import_no_tensorflow():
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, env=environment, check=True)
