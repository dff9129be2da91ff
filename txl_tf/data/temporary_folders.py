"""Temporary folders in which files are written before they are moved into place."""

import contextlib
import glob
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from txl_tf.data.files import check_folder, is_remote
from txl_tf.errors import StorageError, UserError, explain_errors

_LEFTOVER_AGE = 24 * 60 * 60  # seconds


def check_new_folder(out: str) -> None:
    """Checks that `write_aside` can create a folder: it is local, and missing or empty."""
    if not out or is_remote(out):
        raise UserError(f"`{out}` must be a folder on this machine: copy it from there")
    if (os.path.isdir(out) and os.listdir(out)) or os.path.isfile(out):
        raise UserError(f"`{out}` is not empty: choose another folder")
    check_folder(os.path.realpath(out))  # a link may point to a folder that does not exist yet


@contextlib.contextmanager
def write_aside(out: str) -> Iterator[str]:
    """Yields a new folder beside a new local folder `out`, and renames it to `out` at the end."""
    check_new_folder(out)
    out = os.path.realpath(out)  # a link is kept, and its target is written
    parent, name = os.path.split(out)
    with work_aside(Path(parent), f".{name}.writing-") as aside:
        yield str(aside)
        os.replace(aside, out)


@contextlib.contextmanager
def work_aside(folder: Path, prefix: str) -> Iterator[Path]:
    """Yields a new folder inside `folder` and removes it at the end, even after an error.

    The new folder lies inside `folder`, not beside it, because `folder` may be a mount point and
    files can be moved only within one file system. `folder` is created if it is missing.

    A killed process leaves its folder behind, and the next call with the same prefix removes it.
    On a shared disk, this machine cannot tell whether a process of another machine still runs: a
    folder of another machine is removed if nothing was written to it for a day.
    """
    is_new = not folder.exists()
    with explain_errors(f"`{folder}` cannot be written", OSError, raised=StorageError):
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder, prefix)
        aside = folder / f"{prefix}{_name_process(os.getpid())}-{os.urandom(4).hex()}"
        aside.mkdir()
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()


def _name_process(pid: int) -> str:
    return f"{socket.gethostname()}-{pid}"


def _remove_leftovers(folder: Path, prefix: str) -> None:
    for path in folder.glob(f"{glob.escape(prefix)}*-*-*"):
        # The name of another machine may begin with the name of this one.
        process, _, _ = path.name.removeprefix(prefix).rpartition("-")
        _, _, pid = process.rpartition("-")
        if not pid.isdecimal():
            continue  # `work_aside` did not create it
        if process == _name_process(int(pid)):
            is_leftover = not _is_running(int(pid))
        else:
            is_leftover = time.time() - _find_last_write(path) > _LEFTOVER_AGE
        if is_leftover:
            shutil.rmtree(path, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs as another user
        pass
    return True


def _find_last_write(folder: Path) -> float:
    """Returns the time of the last write to a folder; now if it is gone or unreadable."""
    try:
        return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:
        return time.time()
