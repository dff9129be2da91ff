"""What importing starts; `make lint` checks which part may import which (pyproject.toml)."""

import subprocess
import sys

import pytest
from places import ROOT


@pytest.mark.parametrize(
    "statement",
    ["import txl_tf", "import txl_tf.config", "import txl_tf.presets", "txl_tf.ModelConfig"],
)
def test_configs_need_no_backend(statement):
    program = f"import sys, txl_tf; {statement}; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(ran.stdout.split())
    assert "txl_tf" in loaded
    assert not {"tensorflow", "keras", "jax", "numpy"} & loaded
