"""The Python interface that users rely on."""

from pathlib import Path

from tests.contract.interface import list_interface

KEPT = Path(__file__).with_name("interface.txt")


def test_names_parameters_and_defaults_are_kept():
    # After a deliberate change: python -m tests.contract.interface > tests/contract/interface.txt
    assert list(list_interface()) == KEPT.read_text().splitlines()
