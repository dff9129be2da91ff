"""Benchmarks use what users can use."""

import ast

import pytest
from places import ROOT

PATHS = sorted((ROOT / "benchmarks").rglob("*.py"))
PUBLIC = {"config", "data", "errors", "layers", "presets", "release", "training"}
OF_PROGRAMS = {"programs.cli.flags", "programs.cli.program"}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_benchmark_imports_only_public_names(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            assert not [name for name in names if name.startswith("_")], names
            places = [node.module]
        else:
            places = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for place in places:
            package, _, rest = place.partition(".")
            assert not any(part.startswith("_") for part in place.split(".")), place
            assert package != "txl_tf" or rest in PUBLIC | OF_PROGRAMS | {""}, place
