import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from txl_tf.data.temporary_folders import check_new_folder, work_aside
from txl_tf.errors import StorageError, UserError

HOST = socket.gethostname()


@pytest.fixture(scope="module")
def dead_pid():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def make_left(folder, name, *, age=0.0):
    """Makes the folder of a process, last written to some seconds ago."""
    left = folder / name
    left.mkdir()
    (left / "half").write_bytes(b"half")
    for path in (left / "half", left):
        os.utime(path, (time.time() - age,) * 2)
    return left


def test_a_temporary_folder_lies_inside_its_folder_and_is_removed(tmp_path):
    with work_aside(tmp_path, "apple.") as aside:
        assert aside.parent == tmp_path
        (aside / "half").write_bytes(b"half")
    assert list(tmp_path.iterdir()) == []


def test_an_error_removes_the_temporary_folder_and_its_new_parent(tmp_path):
    def fail():
        with work_aside(tmp_path / "new", "apple.") as aside:
            (aside / "half").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_stays(tmp_path):
    (tmp_path / "old").mkdir()
    with work_aside(tmp_path / "old", "apple."):
        pass
    assert (tmp_path / "old").is_dir()


def test_files_moved_out_of_a_temporary_folder_stay(tmp_path):
    with work_aside(tmp_path / "new", "apple.") as aside:
        (aside / "whole").write_bytes(b"whole")
        (aside / "whole").replace(tmp_path / "new" / "whole")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["whole"]


def test_a_killed_process_of_this_machine_leaves_nothing_for_long(tmp_path, dead_pid):
    make_left(tmp_path, f"apple.{HOST}-{dead_pid}-x_1")
    with work_aside(tmp_path, "apple.") as aside:
        assert list(tmp_path.iterdir()) == [aside]


def test_a_folder_that_an_earlier_process_of_the_same_id_left_is_removed(tmp_path):
    make_left(tmp_path, f"apple.{HOST}-{os.getpid()}-x")
    with work_aside(tmp_path, "apple.") as aside:
        assert list(tmp_path.iterdir()) == [aside]


def test_a_folder_that_this_process_still_uses_stays(tmp_path):
    with work_aside(tmp_path, "apple.") as first, work_aside(tmp_path, "apple.") as second:
        assert {*tmp_path.iterdir()} == {first, second}


def test_the_folder_of_a_running_process_stays(tmp_path):
    left = make_left(tmp_path, f"apple.{HOST}-{os.getppid()}-x", age=1_000_000)
    with work_aside(tmp_path, "apple."):
        assert left.exists()


@pytest.mark.parametrize("host", ["elsewhere", f"{HOST}-2"])
def test_the_folder_of_another_machine_stays_however_old(tmp_path, dead_pid, host):
    left = make_left(tmp_path, f"apple.{host}-{dead_pid}-x", age=1_000_000)
    with work_aside(tmp_path, "apple."):
        assert left.exists()


@pytest.mark.parametrize("name", ["apple.mine", "apple.a-b-c", "pear.{host}-{dead}-x", "apple.1-2"])
def test_folders_with_other_names_stay_however_old(tmp_path, dead_pid, name):
    left = make_left(tmp_path, name.format(host=HOST, dead=dead_pid), age=1_000_000)
    with work_aside(tmp_path, "apple."):
        pass
    assert left.exists()


def test_a_place_that_cannot_be_written_is_named_without_temporary_names():
    with (
        pytest.raises(StorageError, match=r"^`/proc/new` cannot be written: No such file"),
        work_aside(Path("/proc/new"), "apple."),
    ):
        pass


def test_an_empty_mount_point_cannot_be_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("os.path.ismount", lambda path: path == str(tmp_path))
    with pytest.raises(UserError, match="cannot be replaced: choose a new folder in it"):
        check_new_folder(str(tmp_path))
