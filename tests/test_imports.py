"""What importing starts; `make lint` checks which part may import which (pyproject.toml)."""

import subprocess
import sys
import tomllib
from importlib import import_module

import pytest
from places import ROOT


def test_every_command_names_a_program():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert all(command.startswith("txl-") for command in scripts)
    for target in scripts.values():
        module, _, function = target.partition(":")
        assert callable(getattr(import_module(module), function))


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
