import contextlib
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys

import pytest

from txl_tf.errors import UserError
from txl_tf.runs.lock import lock_run


@contextlib.contextmanager
def start_holder(folder):
    """Yields a process that holds the lock of a folder."""
    code = (
        f"import time; from txl_tf.runs.lock import lock_run\n"
        f"with lock_run({str(folder)!r}): print('holds', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"holds\n"
            yield process
        finally:
            process.kill()


def test_the_process_that_holds_the_lock_is_named(tmp_path):
    with start_holder(tmp_path / "run") as process:
        holder = f"process {process.pid} on {socket.gethostname()}"
        with pytest.raises(UserError, match=f"`.*run` is in use: {holder} trains in it"):
            lock_run(str(tmp_path / "run")).__enter__()


def test_a_process_that_was_killed_holds_no_lock(tmp_path):
    with start_holder(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (tmp_path / "lock").exists()
        with lock_run(str(tmp_path)):
            assert str(os.getpid()) in (tmp_path / "lock").read_text()


def test_a_lock_is_given_back_even_in_an_error(tmp_path):
    for _ in range(2):
        with pytest.raises(UserError, match="stopped"), lock_run(str(tmp_path / "run")):
            raise UserError("stopped")
    assert not list(tmp_path.iterdir())


def test_a_lock_given_back_while_it_is_opened_is_made_again(tmp_path, monkeypatch):
    path, lock = tmp_path / "lock", fcntl.flock
    path.touch()

    def remove_and_lock(*arguments):
        if fcntl.flock is remove_and_lock:
            monkeypatch.undo()
            path.unlink()
        lock(*arguments)

    monkeypatch.setattr(fcntl, "flock", remove_and_lock)
    with lock_run(str(tmp_path)), pytest.raises(UserError, match="is in use"):
        lock_run(str(tmp_path)).__enter__()


def test_a_folder_that_stays_empty_is_removed(tmp_path):
    with lock_run(str(tmp_path / "a/b/run")):
        assert (tmp_path / "a/b/run").is_dir()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_something_stays(tmp_path):
    with lock_run(str(tmp_path / "run")):
        (tmp_path / "run" / "config.json").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.json"]


def test_an_address_is_not_locked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with lock_run("gs://bucket/run"), lock_run("gs://bucket/run"):
        assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with lock_run(str(tmp_path)):
        assert "lock` cannot be locked (No locks available): a second run would go unnoticed" in (
            capsys.readouterr().out
        )
