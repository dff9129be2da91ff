"""The lock of a run folder, which lets only one process at a time train in it."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from txl_tf.data.files import is_remote
from txl_tf.errors import UserError, explain

LOCK_NAME = "lock"


@contextlib.contextmanager
def lock_run(model_dir: str) -> Iterator[None]:
    """Holds the lock of a run folder.

    The operating system locks the file `lock` and releases it when the process ends, however it
    ends; the existence of the file means nothing. A missing folder is created, and removed at the
    end if it is empty. Remote storage, such as gs://, has no such locks, so nothing is locked
    there.

    Raises:
        UserError: If another process holds the lock. The message names it.
    """
    if is_remote(model_dir):
        yield
        return
    folder = Path(os.path.abspath(model_dir))
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _open_locked(folder / LOCK_NAME, model_dir) as file:
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(file.name)
    finally:
        with contextlib.suppress(OSError):  # a folder that is not empty stays
            for place in made:
                place.rmdir()


def _open_locked(path: Path, model_dir: str) -> TextIO:
    """Returns the open, locked file, which names this process."""
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        with file:
            holder = file.read() or "another process"  # which has not written its name yet
        raise UserError(
            f"`{model_dir}` is in use: {holder} trains in it. Wait until it ends, or choose "
            "another --model_dir"
        ) from error
    except OSError as error:
        print(f"`{path}` cannot be locked ({explain(error)}): a second run would go unnoticed.")
        return file
    if not path.exists() or not os.path.samestat(path.stat(), os.fstat(file.fileno())):
        file.close()  # removed by its holder in the meantime
        return _open_locked(path, model_dir)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    return file
