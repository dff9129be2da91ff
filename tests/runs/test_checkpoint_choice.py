"""Which checkpoint of a run a choice names."""

import json
import os

import pytest

from txl_tf.config import EvalConfig
from txl_tf.config.training import RunOptions
from txl_tf.errors import UserError
from txl_tf.runs.checkpoint import load_choice
from txl_tf.runs.checkpoint_choice import find_checkpoint
from txl_tf.training.log import Validation

NO_LANES = {"lanes": None, "evaluation": EvalConfig()}


@pytest.fixture
def run(tmp_path):
    """A folder with checkpoints of steps 3, 7 and 11 and a mean, of which 7 was the best."""
    for name in ("checkpoints/ckpt-3", "checkpoints/ckpt-7", "checkpoints/ckpt-11"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.index").touch()
    (tmp_path / "averaged").mkdir()
    (tmp_path / "averaged/ckpt-11.index").touch()
    write_losses(tmp_path, {3: 2.9, 7: 2.3, 11: 2.7})
    return tmp_path


def write_losses(run, losses, split="valid"):
    with (run / "validation.jsonl").open("a") as file:
        for step, nats in losses.items():
            file.write(json.dumps({"step": step, "split": split, "loss_nats": nats}) + "\n")


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        (None, "checkpoints/ckpt-11"),
        ("best", "checkpoints/ckpt-7"),
        ("3", "checkpoints/ckpt-3"),
        ("ckpt-3", "checkpoints/ckpt-3"),
        ("ckpt-3.index", "checkpoints/ckpt-3"),
        ("averaged/ckpt-11", "averaged/ckpt-11"),
    ],
)
def test_a_choice_names_a_checkpoint_of_the_run(run, choice, name):
    assert find_checkpoint(str(run), choice) == str(run / name)


def test_a_path_outside_the_run_is_taken_as_it_is(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("elsewhere") / "ckpt-5"
    path.with_name("ckpt-5.index").touch()
    assert find_checkpoint(str(run), str(path)) == str(path)


@pytest.mark.parametrize("name", ["a[1]", "a*"])
def test_a_folder_that_reads_as_a_pattern_is_refused(run, name):
    folder = run.rename(run.parent / name)
    with pytest.raises(UserError, match=r"must not contain \*, \? or \[: .* Rename the folder$"):
        find_checkpoint(str(folder))


@pytest.mark.parametrize("choice", [None, "newest"])
def test_only_an_unchosen_newest_is_told_of_the_best(run, choice, capsys):
    find_checkpoint(str(run), choice)
    expected = (
        f"Reading step 11, the newest checkpoint of {run}. Step 7 had the lowest loss in the "
        "evaluations during training: checkpoint=best reads it.\n"
    )
    assert capsys.readouterr().err == (expected if choice is None else "")


@pytest.mark.parametrize(
    "losses",
    [{3: 2.9, 7: 2.3}, {3: 2.9, 7: 2.5, 11: 2.3}, {5: 2.1, 11: 2.3}],
    ids=["not evaluated since", "newest is best", "best is gone"],
)
def test_a_newest_that_no_other_beats_is_read_silently(run, losses, capsys):
    (run / "validation.jsonl").unlink()
    write_losses(run, losses)
    assert find_checkpoint(str(run)) == str(run / "checkpoints/ckpt-11")
    assert capsys.readouterr().err == ""


def test_best_needs_evaluations(run):
    (run / "validation.jsonl").unlink()
    with pytest.raises(UserError, match=r"no best checkpoint: .*--eval_every"):
        find_checkpoint(str(run), "best")


def test_best_must_still_exist(run):
    write_losses(run, {5: 2.0, 7: 2.3})
    with pytest.raises(UserError, match="no checkpoint of step 5"):
        find_checkpoint(str(run), "best")


def test_losses_of_another_split_are_not_compared(run):
    write_losses(run, {11: 2.8}, split="test")
    assert find_checkpoint(str(run), "best") == str(run / "checkpoints/ckpt-11")
    for split, step in (("valid", 7), ("test", 11)):
        options = RunOptions(eval_split=split)
        assert Validation(str(run), options, first_step=11, **NO_LANES).best_step == step


def test_evaluations_of_another_layout_are_told_in_one_line(run):
    (run / "validation.jsonl").write_text('{"step": 3, "split": "valid", "bits": 2.9}\n')
    message = rf"^`{run}/validation\.jsonl` does not hold evaluations of a run: 'loss_nats'$"
    with pytest.raises(UserError, match=message):
        find_checkpoint(str(run))
    with pytest.raises(UserError, match=message):
        Validation(str(run), RunOptions(), first_step=3, **NO_LANES)


def test_a_loss_that_is_no_number_is_not_the_best(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for step in (3, 7, 11):
        (tmp_path / f"checkpoints/ckpt-{step}.index").touch()
    write_losses(tmp_path, {3: float("nan"), 7: 2.9, 11: 2.3})
    assert find_checkpoint(str(tmp_path), "best") == f"{tmp_path}/checkpoints/ckpt-11"
    validation = Validation(
        str(tmp_path),
        RunOptions(patience=2, eval_every=4),
        first_step=11,
        lanes=None,
        evaluation=EvalConfig(),
    )
    assert validation.best_step == 11
    assert not validation.is_over


def test_a_file_of_weights_is_found_by_its_name_in_the_run(tmp_path):
    (tmp_path / "model.safetensors").touch()
    found = find_checkpoint(str(tmp_path), "model.safetensors")
    assert found == f"{tmp_path}/model.safetensors"
    with pytest.raises(UserError, match=r"other.safetensors is missing$"):
        find_checkpoint(str(tmp_path), "other.safetensors")


def remove_before_reading(monkeypatch, steps):
    """Lets a training remove checkpoints of some steps when they are about to be read."""
    read = []

    def load(model, path, *, use_ema):
        read.append(os.path.basename(path))
        if int(path.rpartition("-")[2]) in steps:
            os.remove(f"{path}.index")
            raise UserError(f"checkpoint {path} cannot be restored")
        return False

    monkeypatch.setattr("txl_tf.runs.checkpoint.load_weights", load)
    return read


def test_the_newest_is_chosen_again_if_it_is_removed(run, monkeypatch):
    read = remove_before_reading(monkeypatch, {7, 11})
    assert load_choice(None, str(run)) == (str(run / "checkpoints/ckpt-3"), False)
    assert read == ["ckpt-11", "ckpt-7", "ckpt-3"]


@pytest.mark.parametrize("choice", ["7", "ckpt-7"])
def test_a_chosen_checkpoint_that_is_removed_is_named(choice, run, monkeypatch):
    remove_before_reading(monkeypatch, {7})
    with pytest.raises(UserError, match=r"no checkpoint of step 7\. .*: 3, 11|ckpt-7\.index is"):
        load_choice(None, str(run), choice)


def test_a_damaged_checkpoint_is_read_once(run, monkeypatch):
    read = remove_before_reading(monkeypatch, {11})
    monkeypatch.setattr("os.remove", lambda path: None)
    with pytest.raises(UserError, match="ckpt-11 cannot be restored"):
        load_choice(None, str(run))
    assert read == ["ckpt-11"]
