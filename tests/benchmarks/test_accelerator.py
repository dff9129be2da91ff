"""The benchmark of accelerators on the JAX backend, in a process without TensorFlow."""

import os
import subprocess
import sys

import pytest
from places import ROOT

PROGRAM = """
import sys
for name in ("tensorflow", "tensorflow_text"):
    sys.modules[name] = None
import txl_tf.models.transformer_xl
from benchmarks import accelerator
from benchmarks.step_costs import count_step_flops

class Work(accelerator.Work):
    @property
    def shape(self):
        return super().shape._replace(n_layer=1, n_token=100, cutoffs=(10, 40))

work = Work("base", 8, 2)
steps = accelerator.Steps(work, "bfloat16", 0.1, remat=False, engine=accelerator.PLAIN)
assert steps.make_training_call()().shape == (4,)
assert min(steps.costs["flops"], steps.costs["bytes accessed"]) > 0
accelerator.COPIED //= 64
accelerator.Work = Work
assert accelerator.main(["accelerator", "--works=base:8:2", "--seconds=0"]) == 0
assert steps.make_reading_call()().shape == (4,)
assert count_step_flops(*work.shape.make_configs(0.1)) > 0
"""


@pytest.mark.slow
def test_steps_are_made_without_tensorflow():
    environment = os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tokens/s by products" in done.stdout
