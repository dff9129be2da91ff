"""Runs from records to checkpoints and scores, on tiny records."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from small_runs import CONFIG, TRAINING, make_records, read_log_steps, train

from txl_tf.config.training import RunOptions
from txl_tf.data import open_records
from txl_tf.errors import UserError
from txl_tf.programs.cli.evaluation import evaluate_checkpoints
from txl_tf.runs.checkpoint import CheckpointReader
from txl_tf.runs.checkpoint_choice import list_checkpoints
from txl_tf.runs.folder import (
    find_other_splits,
    find_run_data,
    read_run,
    read_run_id,
    remember_data,
    warn_of_other_split,
)
from txl_tf.training.job import TrainJob, describe_other_records

RESETTING = dataclasses.replace(
    CONFIG,
    training=dataclasses.replace(CONFIG.training, reset_at_documents=True),
    evaluation=dataclasses.replace(CONFIG.evaluation, reset_at_documents=True),
)


@pytest.fixture(scope="module")
def trained(one_replica, records, tmp_path_factory):
    """The folder of a finished run; tests change a copy."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(one_replica, records, folder)
    return folder


def test_a_run_logs_and_saves_at_its_steps_and_at_the_end(trained):
    assert read_log_steps(trained) == [2, 3, 4, 6, 7]
    assert [step for step, _ in list_checkpoints(str(trained))] == [3, 6, 7]


def test_a_copy_of_the_parts_that_matter_resumes_the_run(
    trained, one_replica, records, tmp_path, capsys
):
    copy, run_id = tmp_path / "copy", read_run_id(str(trained))
    shutil.copytree(trained / "checkpoints", copy / "checkpoints")
    for name in ("config.json", "vocabulary.json"):
        shutil.copy(trained / name, copy / name)
    for path in copy.glob("checkpoints/ckpt-7.*"):
        path.unlink()
    train(one_replica, records, copy)
    assert "Resuming from step 6." in capsys.readouterr().out
    assert read_run_id(str(copy)) == run_id
    for step, path in list_checkpoints(str(copy)):
        assert CheckpointReader(path).origin == (step, run_id)
        assert CheckpointReader(f"{path}.memory-00000-of-00001").origin == (step, run_id)


def test_a_warm_start_begins_with_the_weights_at_step_0(trained, one_replica, records, tmp_path):
    (_, path) = list_checkpoints(str(trained))[-1]
    # One step at rate 0 leaves the weights that it began with.
    config = dataclasses.replace(
        CONFIG, training=dataclasses.replace(TRAINING, warmup_steps=1, train_steps=1)
    )
    train(one_replica, records, tmp_path / "two", config, warm_start_path=path)
    ((step, first),) = list_checkpoints(str(tmp_path / "two"))
    assert step == 1
    old, new = (CheckpointReader(each) for each in (path, first))
    for name in old.list_shapes("weights"):
        np.testing.assert_array_equal(new.read("weights", name), old.read("weights", name))


@pytest.fixture(scope="module")
def other_records(tmp_path_factory):
    """Records of as many other tokens in the train split."""
    return make_records(tmp_path_factory.mktemp("other") / "data", seed=8)


@pytest.fixture
def finished(trained, tmp_path):
    """A run with no steps left."""
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def begun(finished, records):
    """A run with one step left, which remembers its records."""
    for path in finished.glob("checkpoints/ckpt-7.*"):
        path.unlink()
    remember_data(str(finished), records.data_dir, records.checksums)
    return finished


def test_a_resumed_run_remembers_the_checkpoint_that_it_began_with(begun, one_replica, records):
    start = str(begun / "start" / "ckpt-5")
    remember_data(str(begun), records.data_dir, records.checksums, warm_start_path=start)
    train(one_replica, records, begun)
    assert read_run(str(begun), needs_data=False).warm_start_path == start


def test_a_run_is_not_resumed_on_other_records(begun, one_replica, other_records):
    with pytest.raises(UserError, match=r"holds other records than .* on: splits train, valid\. P"):
        train(one_replica, other_records, begun)
    assert list_checkpoints(str(begun))[-1][0] == 6


def test_other_records_that_are_accepted_are_named_and_remembered(
    begun, one_replica, other_records, capsys
):
    train(one_replica, other_records, begun, accepts_other_records=True)
    assert "splits train, valid. Training continues on them" in capsys.readouterr().out
    assert find_other_splits(str(begun), other_records) == []


@pytest.fixture
def renamed(other_records, tmp_path):
    """The other records under another name."""
    folder = shutil.copytree(other_records.data_dir, tmp_path / "renamed")
    content = json.loads((folder / "records.json").read_text())
    (folder / "records.json").write_text(json.dumps(content | {"dataset": "other"}))
    return open_records(folder)


def test_records_of_another_name_are_accepted(begun, one_replica, renamed):
    config = dataclasses.replace(CONFIG, dataset="other")
    train(one_replica, renamed, begun, config, accepts_other_records=True)
    assert find_other_splits(str(begun), renamed) == []
    train(one_replica, renamed, begun, config)  # they are now its own


@pytest.mark.parametrize("has_checksums", [True, False])  # older versions saved none
def test_records_of_another_name_are_refused(has_checksums, begun, one_replica, records, renamed):
    checksums = records.checksums if has_checksums else {}
    remember_data(str(begun), records.data_dir, checksums)
    with pytest.raises(UserError, match="dataset is 'words' there and 'other' here"):
        train(one_replica, renamed, begun, dataclasses.replace(CONFIG, dataset="other"))


def test_records_that_were_moved_are_those_of_the_run(begun, records, tmp_path):
    shutil.copytree(records.data_dir, tmp_path / "moved")
    job = TrainJob(str(begun), open_records(tmp_path / "moved"), CONFIG, RunOptions())
    assert describe_other_records(job) is None


def test_a_finished_run_remembers_where_its_records_were_moved(
    finished, one_replica, records, tmp_path
):
    moved = shutil.copytree(records.data_dir, tmp_path / "moved")
    train(one_replica, open_records(moved), finished)
    assert find_run_data(str(finished)) == str(moved)


def test_a_finished_run_does_not_remember_other_records(
    finished, one_replica, records, other_records
):
    train(one_replica, other_records, finished)
    assert find_run_data(str(finished)) == str(records.data_dir)
    assert find_other_splits(str(finished), records) == []


def test_a_run_without_steps_takes_any_records(begun, other_records):
    shutil.rmtree(begun / "checkpoints")
    job = TrainJob(str(begun), other_records, CONFIG, RunOptions())
    assert describe_other_records(job) is None


def test_an_evaluation_warns_of_records_that_were_made_again(begun, records, other_records, capsys):
    warn_of_other_split(str(begun), other_records, "valid")
    assert capsys.readouterr().err == ""  # another folder: these were asked for
    remember_data(str(begun), other_records.data_dir, records.checksums)
    warn_of_other_split(str(begun), other_records, "valid")
    assert "was made again since" in capsys.readouterr().err


def test_a_run_on_documents_is_trained_and_evaluated_by_document(one_replica, tmp_path, capsys):
    records = make_records(tmp_path / "data", document_starts=range(0, 199, 7))
    train(one_replica, records, tmp_path / "run", RESETTING)
    job = TrainJob(str(tmp_path / "run"), records, RESETTING, RunOptions())
    (score,) = evaluate_checkpoints(job, jit="none")
    assert (
        "clamp_len -1, reset_at_documents true, 2 lanes, warmed by 33 tokens.\n"
    ) in capsys.readouterr().out
    (other,) = evaluate_checkpoints(dataclasses.replace(job, config=CONFIG), jit="none")
    assert "clamp_len -1, 2 lanes, warmed by 33 tokens.\n" in capsys.readouterr().out
    assert score.tokens == other.tokens == 60
    assert score.total_nats != other.total_nats
