"""The Python interface that users rely on."""

import ast
import importlib
from pathlib import Path

import txl_tf
from tests.contract.interface import list_interface

KEPT = Path(__file__).with_name("interface.txt")


def test_names_parameters_and_defaults_are_kept():
    # After a deliberate change: python -m tests.contract.interface > tests/contract/interface.txt
    assert list(list_interface()) == KEPT.read_text().splitlines()


def test_the_stub_has_the_names_of_the_package_from_where_they_are():
    imports = ast.parse(Path(txl_tf.__file__).with_name("__init__.pyi").read_text()).body
    places = {alias.asname: node.module for node in imports for alias in node.names}
    assert sorted(places) == sorted(txl_tf.__all__)
    for name, module in places.items():
        assert getattr(importlib.import_module(module), name) is getattr(txl_tf, name)
