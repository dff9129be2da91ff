"""Files appear whole: they are written in a folder aside, and moved into place once done."""

import contextlib
import glob
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_LEFTOVER_AGE = 24 * 60 * 60  # seconds


@contextlib.contextmanager
def work_aside(folder: Path, prefix: str) -> Iterator[Path]:
    """Yields a new folder inside another one, and removes it at the end, whatever happens.

    It lies inside `folder`, not beside it: `folder` may be a mount, and files move within one only.

    A killed process leaves it behind, and the next call with the same prefix removes it. What
    another machine has left on a shared disk goes when nothing has been written in it for a day:
    whether its process still runs cannot be told from here.

    Args:
        folder: The folder. It is made if it is missing, and removed again if it is empty then.
        prefix: The beginning of the new folder's name. The name goes on with the machine and the
            process.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder, prefix)
    prefix = f"{prefix}{_name_process(os.getpid())}-"
    aside = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):  # it holds something
                folder.rmdir()


def _name_process(pid: int) -> str:
    return f"{socket.gethostname()}-{pid}"


def _remove_leftovers(folder: Path, prefix: str) -> None:
    for path in folder.glob(f"{glob.escape(prefix)}*-*-*"):
        # The name of another machine may begin with the name of this one.
        process, _, _ = path.name.removeprefix(prefix).rpartition("-")
        _, _, pid = process.rpartition("-")
        if not pid.isdecimal():
            continue  # a folder of somebody else
        if process == _name_process(int(pid)):
            is_left = not _is_running(int(pid))
        else:
            is_left = time.time() - _find_last_write(path) > _LEFTOVER_AGE
        if is_left:
            shutil.rmtree(path, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _find_last_write(folder: Path) -> float:
    """Returns when a folder, or a file in it, was last written; now if it is gone or unreadable."""
    try:
        return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:
        return time.time()
