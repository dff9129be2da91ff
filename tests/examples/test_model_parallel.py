"""Training on several devices by the example, with devices that a CPU simulates."""

import os
import re
import subprocess
import sys

import pytest
from places import ROOT

pytestmark = pytest.mark.slow


def train(n_devices, model_axis):
    """Returns the bytes of weights on each device, and the losses of the steps."""
    environment = {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={n_devices}"
        " --xla_backend_optimization_level=0",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, "examples/model_parallel.py", "--steps=3"]
    done = subprocess.run(
        [*command, f"--model_axis={model_axis}"],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (size,) = re.findall(r"([\d,]+) bytes of weights", done.stdout)
    return int(size.replace(",", "")), [float(x) for x in re.findall(r": (\S+) nats", done.stdout)]


def test_four_devices_with_half_of_each_layer_have_the_losses_of_one():
    """Two along each axis: rows and layers are divided at once."""
    (whole, expected), (part, losses) = train(1, 1), train(4, 2)
    assert len(losses) == 3
    assert losses == pytest.approx(expected, abs=1e-5)
    assert part <= 0.6 * whole
