"""What importing starts; `make lint` checks which part may import which (pyproject.toml)."""

import subprocess
import sys

from places import ROOT


def test_configs_need_no_backend():
    program = "import sys, txl_tf, txl_tf.presets; txl_tf.ModelConfig; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(ran.stdout.split())
    assert "txl_tf" in loaded
    assert not {"tensorflow", "keras", "jax", "numpy"} & loaded
