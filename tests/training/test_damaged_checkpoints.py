"""Checkpoints that are damaged, not whole, or not to be written."""

import os

import pytest
import tensorflow as tf
from small_checkpoints import Bare, cut, flip, make_checkpointer, save_steps
from small_runs import (
    perturb,
)

from txl_tf.errors import UserError
from txl_tf.training import memory_files
from txl_tf.training.checkpoint_files import list_checkpoints


@pytest.mark.parametrize("damage", [cut, flip, os.remove])
@pytest.mark.parametrize(
    "part",
    [
        "ckpt-5.data-00000-of-00001",
        "ckpt-5.memory-00000-of-00001.data-00000-of-00001",
        "ckpt-5.memory-00000-of-00001.index",
    ],
)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(saved, damage, part):
    model_dir, _, _ = saved
    folder = model_dir / "checkpoints"
    damage(folder / part)
    lines = []
    run = Bare()
    perturb(run)
    assert make_checkpointer(model_dir, run, warn=lines.append).restore() == 2
    assert [step for step, _ in list_checkpoints(str(model_dir))] == [2]
    assert len(lines) == 1
    assert lines[0].startswith(f"Checkpoint {folder}/ckpt-5 is damaged and was set aside: ")
    assert (folder / "damaged-ckpt-5.index").exists()


@pytest.mark.parametrize("damage", [cut, flip])
def test_a_damaged_index_is_set_aside(saved, damage):
    model_dir, _, _ = saved
    damage(model_dir / "checkpoints" / "ckpt-5.index")
    assert make_checkpointer(model_dir, Bare(), warn=lambda line: None).restore() == 2


def test_a_run_all_of_whose_checkpoints_are_damaged_is_refused(saved):
    model_dir, _, _ = saved
    for step in (2, 5):
        cut(model_dir / "checkpoints" / f"ckpt-{step}.data-00000-of-00001")
    with pytest.raises(UserError, match="holds no checkpoint that can be read"):
        make_checkpointer(model_dir, Bare(), warn=lambda line: None).restore()


def test_what_killed_saves_left_is_removed_by_the_next_one(saved):
    model_dir, run, checkpointer = saved
    folder = model_dir / "checkpoints"
    for name in ("ckpt-7.memory-00000-of-00001.index", "ckpt-7.data-00000-of-00001"):
        (folder / name).write_bytes(b"half")
    (folder / "ckpt-7_temp").mkdir()
    save_steps(checkpointer, run, [11])
    assert not list(folder.glob("ckpt-7*"))


def fill_disk(*_, **__):
    raise tf.errors.ResourceExhaustedError(None, None, "No space left on device\nmore lines")


def write_half(path):
    """Returns a write that leaves what one on a full disk leaves."""

    def write(_):
        os.makedirs(f"{path}_temp")
        for part in (f"{path}.data-00000-of-00001", f"{path}_temp/part-00000-of-00001.index"):
            with open(part, "w") as file:
                file.write("half")
        fill_disk()

    return write


@pytest.fixture
def failed(saved, monkeypatch):
    """The folder after a third save that failed halfway, its files before, and the message."""
    model_dir, run, checkpointer = saved
    folder = model_dir / "checkpoints"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(checkpointer._checkpoint, "write", write_half(folder / "ckpt-7"))
    run.set_step(7)
    with pytest.raises(UserError, match="could not be saved") as error:
        checkpointer.save()
    return model_dir, before, str(error.value)


def test_a_failed_save_names_the_newest_whole_checkpoint(failed):
    model_dir, _, message = failed
    folder = model_dir / "checkpoints"
    assert message == (
        f"checkpoint {folder}/ckpt-7 could not be saved: No space left on device; "
        f"the newest whole one is {folder}/ckpt-5"
    )


def test_a_failed_save_leaves_the_older_checkpoints_alone_in_the_folder(failed):
    model_dir, before, _ = failed
    found = list((model_dir / "checkpoints").rglob("*"))
    assert {path.name: path.read_bytes() for path in found if path.is_file()} == before


def test_a_failed_first_save_says_that_there_is_no_older_one(tmp_path, monkeypatch):
    run = Bare()
    checkpointer = make_checkpointer(tmp_path, run)
    monkeypatch.setattr(checkpointer._checkpoint, "write", fill_disk)
    with pytest.raises(UserError, match="No space left on device; there is no older one"):
        checkpointer.save()


def test_after_a_failed_save_the_next_one_succeeds(saved, monkeypatch):
    model_dir, run, checkpointer = saved
    with monkeypatch.context() as patch:
        patch.setattr(
            checkpointer._checkpoint, "write", write_half(model_dir / "checkpoints/ckpt-7")
        )
        run.set_step(7)
        with pytest.raises(UserError, match="could not be saved"):
            checkpointer.save()
    checkpointer.save()
    fresh = Bare()
    assert make_checkpointer(model_dir, fresh).restore() == 7


def test_a_save_that_was_killed_is_no_checkpoint(saved):
    model_dir, _, _ = saved
    # The index is written last: without it the data are not whole.
    (model_dir / "checkpoints" / "ckpt-7.data-00000-of-00001").write_bytes(b"half")
    assert make_checkpointer(model_dir, Bare()).restore() == 5


def test_an_old_checkpoint_loses_its_index_first(saved, monkeypatch):
    _, run, checkpointer = saved
    removed, remove = [], tf.io.gfile.remove
    monkeypatch.setattr(
        tf.io.gfile, "remove", lambda path: (removed.append(os.path.basename(path)), remove(path))
    )
    checkpointer.keep = 2
    save_steps(checkpointer, run, [7])
    assert removed[0] == "ckpt-2.index"
    assert len(removed) == 4  # with the weights, and the two files of the memory


def test_a_checkpoint_that_another_process_sees_is_not_taken_for_damaged(saved, monkeypatch):
    model_dir, _, checkpointer = saved
    before = sorted(model_dir.glob("checkpoints/*"))
    monkeypatch.setattr(checkpointer.workers, "broadcast", lambda _: [7.0])  # the chief's newest
    with pytest.raises(UserError, match=r"ckpt-7 is not here: .* need the same `model_dir`"):
        checkpointer.restore()
    assert sorted(model_dir.glob("checkpoints/*")) == before


def test_a_checkpoint_without_the_memory_of_a_process_is_not_completed(saved, monkeypatch):
    model_dir, run, checkpointer = saved
    monkeypatch.setattr(checkpointer.workers, "count", 2)
    monkeypatch.setattr(checkpointer.workers, "wait", lambda: None)
    monkeypatch.setattr(memory_files, "PATIENCE", 0.0)
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


def test_parts_of_a_killed_first_save_do_not_mix_with_those_of_fewer_processes(tmp_path):
    run = Bare()
    run.set_step(5)
    checkpointer = make_checkpointer(tmp_path, run)
    (tmp_path / "checkpoints").mkdir()
    prefix = str(tmp_path / "checkpoints" / "ckpt-5")
    memory_files.write_memory(prefix, run.memory.gather(), first_row=0, part=0, n_parts=2)
    assert checkpointer.restore() == 0
    checkpointer.save()
    assert make_checkpointer(tmp_path, Bare()).restore() == 5


def test_parts_of_another_number_of_processes_are_not_counted(saved, monkeypatch):
    prefix = str(saved[0] / "checkpoints" / "ckpt-5")
    monkeypatch.setattr(memory_files, "PATIENCE", 0.0)
    with pytest.raises(memory_files.MemoryFileError, match="only 0 of 2 processes"):
        memory_files.check_parts(prefix, 2)
    memory_files.check_parts(prefix, 1)
