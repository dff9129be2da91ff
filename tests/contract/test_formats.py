"""The files that users keep: records, runs with their checkpoints, exports."""

import json
from pathlib import Path

import pytest

from tests.contract.formats import describe_formats

KEPT = json.loads(Path(__file__).with_name("formats.json").read_text())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return describe_formats(tmp_path_factory.mktemp("formats"))


def test_every_format_is_kept(found):
    assert found.keys() == KEPT.keys()


# After a deliberate change: python -m tests.contract.formats tests/contract/formats.json
@pytest.mark.parametrize("name", KEPT)
def test_names_keys_and_variables_are_kept(found, name):
    assert found[name] == KEPT[name]
