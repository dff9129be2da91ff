"""Temporary folders in which files are written before they are moved into place."""

import contextlib
import os
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from txl_tf.data.files import check_folder, is_remote
from txl_tf.errors import StorageError, UserError, explain_errors

_in_use: set[str] = set()  # the names of the temporary folders of this process


def check_new_folder(out: str) -> None:
    """Checks that `write_aside` can create a folder: it is local, and missing or empty."""
    if not out or is_remote(out):
        raise UserError(f"`{out}` must be a folder on this machine: copy it from there")
    if (os.path.isdir(out) and os.listdir(out)) or os.path.isfile(out):
        raise UserError(f"`{out}` is not empty: choose another folder")
    if os.path.isdir(out) and (os.path.samefile(out, ".") or os.path.ismount(out)):
        raise UserError(f"`{out}` cannot be replaced: choose a new folder in it")
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

    A killed process leaves its folder behind, and the next call with the same prefix on the same
    machine removes it. On a shared disk, it keeps folders of other machines, as it cannot tell
    whether their processes still run.
    """
    is_new = not folder.exists()
    with explain_errors(f"`{folder}` cannot be written", OSError, raised=StorageError):
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder, prefix)
        aside = folder / f"{prefix}{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        _in_use.add(aside.name)
        aside.mkdir()
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        _in_use.remove(aside.name)
        if is_new:
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()


def _remove_leftovers(folder: Path, prefix: str) -> None:
    # Exclude machines whose name begins with the name of this one.
    own = re.compile(re.escape(f"{prefix}{socket.gethostname()}-") + r"(\d+)-[^-]+")
    for path in folder.iterdir():
        match = own.fullmatch(path.name)
        if match and path.name not in _in_use and not _is_other_process(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)


def _is_other_process(pid: int) -> bool:
    if pid == os.getpid():  # in a container, a process often has the id of the one before
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs as another user
        pass
    return True
