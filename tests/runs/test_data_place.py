"""What a run remembers of where its data are."""

import json

import pytest

from txl_tf.errors import UserError
from txl_tf.runs.folder import (
    find_run_data,
    knows_data,
    recall_data,
    remember_data,
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run folder, and a folder of data beside it, the working folder of both."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "data").mkdir()
    return tmp_path / "run"


def test_a_place_is_recalled_as_any_working_folder_knows_it(run, monkeypatch, tmp_path):
    remember_data(str(run), "data")
    monkeypatch.chdir(run)
    assert recall_data(str(run)) == str(tmp_path / "data")


def test_a_place_of_an_older_version_is_recalled(run, tmp_path):
    place = {"data_dir": str(tmp_path / "data"), "data_format": "records", "record_info_dir": None}
    (run / "data.json").write_text(json.dumps(place))
    assert recall_data(str(run)) == str(tmp_path / "data")


def test_an_address_stays_as_it_is(run):
    remember_data(str(run), "gs://bucket/data")
    assert recall_data(str(run)) == "gs://bucket/data"


def test_a_run_that_remembers_nothing_says_so(run):
    assert not knows_data(str(run))
    assert recall_data(str(run)) is None


def test_the_place_that_was_given_last_is_recalled(run, tmp_path):
    (tmp_path / "moved").mkdir()
    for name in ("data", "moved"):
        remember_data(str(run), name)
    assert recall_data(str(run)) == str(tmp_path / "moved")


@pytest.mark.parametrize("text", ["", '{"data_dir": 3}'])
def test_a_file_that_cannot_be_read_is_named_and_written_anew(run, text, tmp_path):
    (run / "data.json").write_text(text)
    with pytest.raises(UserError, match=r"data\.json"):
        recall_data(str(run))
    remember_data(str(run), "data")
    assert recall_data(str(run)) == str(tmp_path / "data")


def test_records_in_the_run_itself_come_first(run, tmp_path):
    remember_data(str(run), "data")
    assert find_run_data(str(run)) == str(tmp_path / "data")
    (run / "records").mkdir()
    (run / "records" / "records.json").write_text(json.dumps({}))
    assert find_run_data(str(run)) == f"{run}/records"
