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
def begun(trained, records, tmp_path):
    """A run with one step left, which remembers its records."""
    run = shutil.copytree(trained, tmp_path / "run")
    for path in run.glob("checkpoints/ckpt-7.*"):
        path.unlink()
    remember_data(str(run), records.data_dir, records.checksums)
    return run


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


def test_records_of_another_name_are_accepted(begun, one_replica, other_records, tmp_path):
    info = tmp_path / "renamed"
    shutil.copytree(other_records.data_dir, info)
    content = json.loads((info / "records.json").read_text())
    (info / "records.json").write_text(json.dumps(content | {"dataset": "other"}))
    renamed = open_records(info)
    with pytest.raises(UserError, match="dataset is 'words' there and 'other' here"):
        train(one_replica, renamed, begun, dataclasses.replace(CONFIG, dataset="other"))
    config = dataclasses.replace(CONFIG, dataset="other")
    train(one_replica, renamed, begun, config, accepts_other_records=True)
    assert find_other_splits(str(begun), renamed) == []


def test_records_that_were_moved_are_those_of_the_run(begun, records, tmp_path):
    shutil.copytree(records.data_dir, tmp_path / "moved")
    job = TrainJob(str(begun), open_records(tmp_path / "moved"), CONFIG, RunOptions())
    assert describe_other_records(job) is None


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
        "clamp_len -1, 2 lanes, warmed by 33 tokens, reset_at_documents true.\n"
    ) in capsys.readouterr().out
    (other,) = evaluate_checkpoints(dataclasses.replace(job, config=CONFIG), jit="none")
    assert "clamp_len -1, 2 lanes, warmed by 33 tokens.\n" in capsys.readouterr().out
    assert score.tokens == other.tokens == 60
    assert score.total_nats != other.total_nats
