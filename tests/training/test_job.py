"""Runs from records to checkpoints and scores, on tiny records."""

import dataclasses
import shutil

import pytest
from small_jobs import CONFIG, WORDS, make_records, read_log_steps, train
from small_runs import TRAINING, stop_after

from txl_tf.data import Vocabulary
from txl_tf.errors import UserError
from txl_tf.evaluation.checkpoints import evaluate_checkpoints
from txl_tf.runs.checkpoint_files import list_checkpoints
from txl_tf.runs.checkpoint_reader import CheckpointReader
from txl_tf.runs.folder import make_run_folder, read_run_id

RESETTING = dataclasses.replace(
    CONFIG,
    training=dataclasses.replace(CONFIG.training, reset_at_documents=True),
    evaluation=dataclasses.replace(CONFIG.evaluation, reset_at_documents=True),
)


@pytest.fixture
def records(tmp_path):
    return make_records(tmp_path / "data")


def test_a_run_logs_and_saves_at_its_steps_and_at_the_end(one_replica, records, tmp_path):
    model_dir = tmp_path / "run"
    train(one_replica, records, model_dir)
    assert read_log_steps(model_dir) == [2, 3, 4, 6, 7]
    assert [step for step, _ in list_checkpoints(str(model_dir))] == [3, 6, 7]


def test_a_run_that_was_stopped_resumes_from_its_last_checkpoint(
    one_replica, records, tmp_path, capsys
):
    model_dir = tmp_path / "run"
    with stop_after(4):
        train(one_replica, records, model_dir)
    capsys.readouterr()
    train(one_replica, records, model_dir)
    assert "Resuming from step 3." in capsys.readouterr().out
    assert read_log_steps(model_dir) == [2, 3, 4, 6, 7]  # 4 stands there once


def test_a_run_keeps_its_id_and_its_checkpoints_name_it(one_replica, records, tmp_path):
    model_dir = tmp_path / "run"
    train(one_replica, records, model_dir)
    run_id = read_run_id(str(model_dir))
    for path in model_dir.glob("checkpoints/ckpt-7.*"):
        path.unlink()
    train(one_replica, records, model_dir)
    assert read_run_id(str(model_dir)) == run_id
    for step, path in list_checkpoints(str(model_dir)):
        assert CheckpointReader(path).origin == (step, run_id)
        assert CheckpointReader(f"{path}.memory-00000-of-00001").origin == (step, run_id)


@pytest.mark.parametrize("names", [("*",), ("config.json", "vocabulary.json", "checkpoints")])
def test_a_copy_of_a_run_resumes(names, one_replica, records, tmp_path, capsys):
    model_dir, copy = tmp_path / "run", tmp_path / "copy"
    train(one_replica, records, model_dir)
    copy.mkdir()
    for path in [path for name in names for path in model_dir.glob(name)]:
        (shutil.copytree if path.is_dir() else shutil.copy)(path, copy / path.name)
    for path in copy.glob("checkpoints/ckpt-7.*"):
        path.unlink()
    train(one_replica, records, copy)
    assert "Resuming from step 6." in capsys.readouterr().out
    assert read_run_id(str(copy)) == read_run_id(str(model_dir))


def test_a_warm_start_begins_with_the_weights_at_step_0(one_replica, records, tmp_path):
    train(one_replica, records, tmp_path / "one")
    (_, path) = list_checkpoints(str(tmp_path / "one"))[-1]
    # One step at rate 0 leaves the weights that it began with.
    config = dataclasses.replace(CONFIG, training=dataclasses.replace(TRAINING, train_steps=5))
    train(one_replica, records, tmp_path / "two", config, save_steps=1, warm_start_path=path)
    scores = [
        evaluate_checkpoints(
            records,
            CONFIG,
            model_dir=str(tmp_path / folder),
            split="valid",
            checkpoint=str(tmp_path / folder / "checkpoints" / f"ckpt-{step}"),
            jit="none",
        )
        for folder, step in (("one", 7), ("two", 1))
    ]
    assert scores[0] == scores[1]


def test_a_run_in_another_config_is_refused_before_anything_is_made(one_replica, records, tmp_path):
    make_run_folder(str(tmp_path / "run"), CONFIG, records.vocabulary)
    files = sorted(path for path in (tmp_path / "run").rglob("*") if path.is_file())
    before = [(path, path.read_bytes()) for path in files]
    other = dataclasses.replace(CONFIG, training=dataclasses.replace(CONFIG.training, clip=0.5))
    with pytest.raises(UserError, match=r"clip is 0\.25 there and 0\.5 here"):
        train(one_replica, records, tmp_path / "run", other)
    found = sorted(path for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert [(path, path.read_bytes()) for path in found] == before


@pytest.fixture
def other_records(tmp_path):
    """Records with the same ids, which stand for other words."""
    return make_records(tmp_path / "other", Vocabulary("word", WORDS.symbols[::-1]))


def test_a_run_does_not_go_on_with_another_vocabulary(
    one_replica, records, other_records, tmp_path
):
    make_run_folder(str(tmp_path / "run"), CONFIG, records.vocabulary)
    with pytest.raises(UserError, match="records with another vocabulary"):
        train(one_replica, other_records, tmp_path / "run")


def test_a_run_is_not_evaluated_with_another_vocabulary(records, other_records, tmp_path):
    make_run_folder(str(tmp_path / "run"), CONFIG, records.vocabulary)
    with pytest.raises(UserError, match="records with another vocabulary"):
        evaluate_checkpoints(other_records, CONFIG, model_dir=str(tmp_path / "run"), split="valid")


def test_a_split_too_short_for_the_lanes_leaves_no_folder(one_replica, tmp_path):
    records = make_records(tmp_path / "data", n_tokens=29)
    with pytest.raises(UserError, match=r"Received: n_lanes=6, tgt_len=5, 29 tokens"):
        train(one_replica, records, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_batch_that_replicas_cannot_share_leaves_no_folder(two_replicas, records, tmp_path):
    config = dataclasses.replace(
        CONFIG, training=dataclasses.replace(CONFIG.training, train_batch_size=7)
    )
    with pytest.raises(UserError, match=r"Received: train_batch_size=7, 2 replicas"):
        train(two_replicas, records, tmp_path / "run", config)
    assert not (tmp_path / "run").exists()


def test_a_run_on_documents_is_trained_and_evaluated_by_document(one_replica, tmp_path, capsys):
    records = make_records(tmp_path / "data", document_starts=range(0, 199, 7))
    settings = {"model_dir": str(tmp_path / "run"), "split": "valid", "jit": "none"}
    train(one_replica, records, tmp_path / "run", RESETTING)
    (score,) = evaluate_checkpoints(records, RESETTING, **settings)
    assert (
        "clamp_len -1, 2 lanes, warmed by 33 tokens, reset_at_documents true.\n"
    ) in capsys.readouterr().out
    (other,) = evaluate_checkpoints(records, CONFIG, **settings)
    assert "clamp_len -1, 2 lanes, warmed by 33 tokens.\n" in capsys.readouterr().out
    assert score.tokens == other.tokens == 60
    assert score.total_nats != other.total_nats


def test_documents_that_are_not_known_leave_no_folder(one_replica, records, tmp_path):
    message = r"^`reset_at_documents` needs a .* boundaries; .*data has none in split train$"
    with pytest.raises(UserError, match=message):
        train(one_replica, records, tmp_path / "run", RESETTING)
    assert not (tmp_path / "run").exists()


def test_documents_that_are_not_known_are_not_evaluated(records, tmp_path):
    make_run_folder(str(tmp_path / "run"), RESETTING, records.vocabulary)
    with pytest.raises(UserError, match=r"boundaries; .*data has none in split valid$"):
        evaluate_checkpoints(records, RESETTING, model_dir=str(tmp_path / "run"), split="valid")
