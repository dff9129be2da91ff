"""Every benchmark can be started."""

import importlib

import pytest
from places import ROOT

PROGRAMS = [
    path.stem
    for path in sorted((ROOT / "benchmarks").glob("*.py"))
    if "\ndef main(" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_benchmark_describes_its_flags(name, capsys):
    assert importlib.import_module(f"benchmarks.{name}").main([name, "--help"]) == 0
    assert "\n  --" in capsys.readouterr().out
