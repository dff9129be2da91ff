"""Checkpoints that are damaged, not whole, or not to be written."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from small_runs import (
    RUN_ID,
    Bare,
    copy_checkpoint,
    cut,
    flip,
    make_checkpointer,
    perturb,
    save_steps,
)

from txl_tf.data.files import move_file
from txl_tf.errors import UserError
from txl_tf.runs import checkpoint
from txl_tf.runs.checkpoint import Origin, load_weights, remove_checkpoint, save_weights
from txl_tf.runs.checkpoint_choice import list_checkpoints


def test_an_older_checkpoint_that_is_whole_is_named(saved):
    model_dir, run, _ = saved
    newest = model_dir / "checkpoints" / "ckpt-5"
    cut(newest.with_name("ckpt-5.data-00000-of-00001"))
    with pytest.raises(UserError, match=r"\. An older one is whole: checkpoint=2 reads it$"):
        load_weights(run.model, str(newest))
    for path in newest.parent.glob("ckpt-5.*"):
        shutil.copy(path, path.with_name(path.name.replace("ckpt-5", "mine")))
    with pytest.raises(UserError, match=r"mine cannot be restored: (?!.*whole)"):
        load_weights(run.model, str(newest.with_name("mine")))
    cut(newest.with_name("ckpt-2.index"))
    with pytest.raises(UserError, match=r"ckpt-5 cannot be restored: (?!.*whole)"):
        load_weights(run.model, str(newest))


def test_a_checkpoint_with_one_damaged_weight_changes_no_weight(tmp_path):
    run = Bare()
    save_weights(str(tmp_path), run.model, step=5)
    path = tmp_path / "checkpoints" / "ckpt-5"
    flip(path.with_name("ckpt-5.data-00000-of-00001"))
    perturb(run)
    before = run.model.get_weights()
    with pytest.raises(UserError, match="ckpt-5 cannot be restored"):
        load_weights(run.model, str(path))
    for weight, expected in zip(run.model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, expected, err_msg=weight.path)


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (flip, "data-00000-of-00001"),
        (os.remove, "data-00000-of-00001"),
        (cut, "index"),
        (flip, "memory-00000-of-00001.data-00000-of-00001"),
        (os.remove, "memory-00000-of-00001.index"),
    ],
)
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(saved, damage, part, capsys):
    model_dir, _, _ = saved
    folder = model_dir / "checkpoints"
    damage(folder / f"ckpt-5.{part}")
    run = Bare()
    perturb(run)
    assert make_checkpointer(model_dir, run).restore() == 2
    assert [step for step, _ in list_checkpoints(str(model_dir))] == [2]
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"Checkpoint {folder}/ckpt-5 is damaged and was set aside: ")
    assert (folder / "damaged-ckpt-5.index").exists()


OTHER_ID = "aabbccddeeff"


def save_named(model_dir, steps, run_id=RUN_ID):
    run = Bare()
    save_steps(make_checkpointer(model_dir, run, run_id=run_id), run, steps)
    return model_dir / "checkpoints"


def restore(model_dir, capsys):
    """Returns the step that is restored, and the lines that are printed."""
    step = make_checkpointer(model_dir, Bare()).restore()
    return step, capsys.readouterr().out.splitlines()


def test_the_memory_of_another_step_is_set_aside(tmp_path, capsys):
    folder = save_named(tmp_path, [2, 5])
    copy_checkpoint(folder / "ckpt-2", folder / "ckpt-5", "memory-*")
    step, lines = restore(tmp_path, capsys)
    assert step == 2
    assert lines == [
        f"Checkpoint {folder}/ckpt-5 is damaged and was set aside: its parts are of different "
        f"checkpoints: ckpt-5.memory-00000-of-00001 names step 2 of run {RUN_ID}, the weights name "
        f"step 5 of run {RUN_ID}"
    ]


def test_a_checkpoint_under_the_name_of_another_step_is_set_aside(tmp_path, capsys):
    folder = save_named(tmp_path, [3, 5])
    copy_checkpoint(folder / "ckpt-3", folder / "ckpt-160")
    step, lines = restore(tmp_path, capsys)
    assert step == 5
    assert lines == [
        f"Checkpoint {folder}/ckpt-160 is damaged and was set aside: it holds the weights of step 3"
    ]


def test_a_checkpoint_of_another_run_is_set_aside(tmp_path, capsys):
    folder = save_named(tmp_path, [2])
    copy_checkpoint(save_named(tmp_path / "b", [5], OTHER_ID) / "ckpt-5", folder / "ckpt-5")
    step, (line,) = restore(tmp_path, capsys)
    assert step == 2
    assert line.endswith(f": it belongs to run {OTHER_ID}, not to run {RUN_ID}")


@pytest.mark.parametrize("n_removed", [1, 2])
def test_an_interrupted_removal_is_completed(n_removed, tmp_path, monkeypatch, capsys):
    folder = save_named(tmp_path, [2, 5])
    remove, left = tf.io.gfile.remove, iter(range(n_removed))

    def remove_some(path):
        if next(left, None) is None:
            raise KeyboardInterrupt
        remove(path)

    monkeypatch.setattr(tf.io.gfile, "remove", remove_some)
    with pytest.raises(KeyboardInterrupt):
        remove_checkpoint(str(folder / "ckpt-2"))
    monkeypatch.undo()
    step, (line,) = restore(tmp_path, capsys)
    assert step == 5
    assert not list(folder.glob("*ckpt-2*"))
    assert line.startswith("Removed the remains of an interrupted save or removal of checkpoint ")


def test_files_of_killed_saves_are_removed_by_the_next_save(saved, capsys):
    """The index is written last: without it there is no checkpoint."""
    model_dir, run, checkpointer = saved
    folder = model_dir / "checkpoints"
    for name in ("ckpt-7.memory-00000-of-00001.index", "ckpt-7.data-00000-of-00001"):
        (folder / name).write_bytes(b"half")
    (folder / "ckpt-7_temp").mkdir()
    assert [step for step, _ in list_checkpoints(str(model_dir))] == [2, 5]
    save_steps(checkpointer, run, [11])
    assert not list(folder.glob("*ckpt-7*"))
    assert capsys.readouterr().out.splitlines() == [
        f"Removed the remains of an interrupted save or removal of checkpoint {folder}/ckpt-7: "
        "ckpt-7.data-00000-of-00001, ckpt-7.memory-00000-of-00001.index"
    ]


def test_a_checkpoint_is_seen_when_it_is_complete(saved, monkeypatch):
    """TensorFlow writes the index in place, where another process would read the first half."""
    model_dir, run, checkpointer = saved
    write, moved = tf.train.Checkpoint.write, []

    def move(source, path):
        move_file(source, path)
        moved.append(os.path.basename(path))

    def write_and_look(checkpoint, path):
        write(checkpoint, path)
        assert [step for step, _ in list_checkpoints(str(model_dir))] == [2, 5]

    (model_dir / "checkpoints" / "ckpt-7_temp").mkdir()
    (model_dir / "checkpoints" / "ckpt-7_temp" / "part-0.index").write_bytes(b"half")
    monkeypatch.setattr(tf.train.Checkpoint, "write", write_and_look)
    monkeypatch.setattr(checkpoint, "move_file", move)
    save_steps(checkpointer, run, [7])
    assert moved == ["ckpt-7.data-00000-of-00001", "ckpt-7.index"]
    assert [step for step, _ in list_checkpoints(str(model_dir))] == [2, 5, 7]
    assert not list((model_dir / "checkpoints").glob("*_temp"))


def fill_disk(*_, **__):
    raise tf.errors.ResourceExhaustedError(None, None, "No space left on device\nmore lines")


def write_half(_, path):
    """Leaves what a write on a full disk leaves."""
    os.makedirs(f"{path}_temp")
    for part in (f"{path}.data-00000-of-00001", f"{path}_temp/part-00000-of-00001.index"):
        with open(part, "w") as file:
            file.write("half")
    fill_disk()


def test_a_failed_save_leaves_the_older_checkpoints_and_can_be_repeated(saved, monkeypatch):
    model_dir, run, checkpointer = saved
    folder = model_dir / "checkpoints"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    run.set_step(7)
    with monkeypatch.context() as patch:
        patch.setattr(tf.train.Checkpoint, "write", write_half)
        with pytest.raises(UserError) as error:
            checkpointer.save()
    assert str(error.value) == (
        f"checkpoint {folder}/ckpt-7 could not be saved: No space left on device; "
        f"the newest checkpoint is {folder}/ckpt-5"
    )
    found = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name: path.read_bytes() for path in found} == before
    checkpointer.save()
    assert make_checkpointer(model_dir, Bare()).restore() == 7


def test_a_failed_first_save_names_no_older_one(tmp_path, monkeypatch):
    checkpointer = make_checkpointer(tmp_path, Bare())
    monkeypatch.setattr(tf.train.Checkpoint, "write", fill_disk)
    with pytest.raises(UserError, match=r"could not be saved: No space left on device$"):
        checkpointer.save()


def test_an_old_checkpoint_loses_its_index_first(saved, monkeypatch):
    _, run, checkpointer = saved
    removed, remove = [], tf.io.gfile.remove

    def remove_and_note(path):
        removed.append(os.path.basename(path))
        remove(path)

    monkeypatch.setattr(tf.io.gfile, "remove", remove_and_note)
    checkpointer.keep = 2
    save_steps(checkpointer, run, [7])
    assert removed[0] == "ckpt-2.index"
    assert len(removed) == 4  # with the weights, and the two files of the memory


def test_a_checkpoint_that_another_process_sees_is_not_taken_for_damaged(saved, monkeypatch):
    model_dir, _, checkpointer = saved
    before = sorted(model_dir.glob("checkpoints/*"))
    monkeypatch.setattr(checkpointer.workers, "broadcast", lambda _: [7.0])  # the chief's newest
    with pytest.raises(UserError, match=r"ckpt-7 is missing for .*: .* need the same `model_dir`"):
        checkpointer.restore()
    assert sorted(model_dir.glob("checkpoints/*")) == before


def test_a_checkpoint_without_the_memory_of_a_process_is_not_completed(saved, monkeypatch):
    model_dir, run, checkpointer = saved
    monkeypatch.setattr(checkpointer.workers, "count", 2)
    monkeypatch.setattr(checkpointer.workers, "wait", lambda: None)
    monkeypatch.setattr(checkpoint, "PATIENCE", 0.0)
    run.set_step(7)
    with pytest.raises(UserError, match="only 1 of 2 processes have written into this folder"):
        checkpointer.save()
    assert [step for step, _ in list_checkpoints(str(model_dir))] == [2, 5]
    assert not list(model_dir.glob("checkpoints/ckpt-7*"))


def test_a_folder_of_damaged_checkpoints_starts_nothing_anew(saved):
    """Also when it is asked again: a launcher would begin at step 0, and empty the log."""
    model_dir, _, checkpointer = saved
    for path in model_dir.glob("checkpoints/*.index"):
        cut(path)
    for _ in range(2):
        with pytest.raises(UserError, match=r"no checkpoint that can be read: move .*damaged-\*"):
            checkpointer.restore()


def test_parts_of_a_killed_first_save_are_not_mixed_in(tmp_path):
    run = Bare()
    run.set_step(5)
    checkpointer = make_checkpointer(tmp_path, run)
    (tmp_path / "checkpoints").mkdir()
    prefix = str(tmp_path / "checkpoints" / "ckpt-5")
    checkpoint.write_memory(
        prefix, run.memory.gather(), Origin(5, RUN_ID), first_row=0, part=0, n_parts=2
    )
    assert checkpointer.restore() == 0
    checkpointer.save()
    assert make_checkpointer(tmp_path, Bare()).restore() == 5
