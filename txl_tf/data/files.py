"""Files that are local, or remote at an address that TensorFlow can read and write."""

import contextlib
import hashlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from txl_tf.errors import StorageError, UserError, explain, explain_errors

# When to report that a storage does not answer, and when to give up. TensorFlow itself would try
# for up to an hour, since it waits two minutes for each of its connections.
NOTICE_SECONDS, PATIENCE_SECONDS = 5.0, 60.0
_answered: set[str] = set()  # the storages that have answered, such as "gs://bucket"


class Storage(Protocol):
    """Reads and writes files at addresses in place of TensorFlow; see `use_storage`."""

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading, without unpacking it."""

    def get_size(self, path: str) -> int | None:
        """Returns the size of a file in bytes, or `None` if it is missing."""

    def find(self, pattern: str) -> list[str]:
        """Returns the addresses of the files that match a pattern, in the order of their names."""

    def upload(self, source: Path, path: str) -> None:
        """Copies a local file to an address; an older file there is replaced."""

    def remove(self, path: str) -> None:
        """Removes a file."""


_storage: Storage | None = None


@contextlib.contextmanager
def use_storage(storage: Storage) -> Iterator[None]:
    """Lets another library than TensorFlow read and write the files at addresses.

    It may know schemes that TensorFlow does not, and texts may then be at addresses, too.
    """
    global _storage
    before, _storage = _storage, storage
    try:
        yield
    finally:
        _storage = before


def get_storage() -> Storage | None:
    """Returns the storage of `use_storage`; `None` if TensorFlow reads what is at addresses."""
    return _storage


def join_path(folder: str, file: str) -> str:
    """Returns the path of a file in a folder, which may be remote."""
    return f"{folder.rstrip('/')}/{file}"


def is_remote(path: str) -> bool:
    """Returns whether a path is a remote address, such as "gs://bucket/folder"."""
    return "://" in path


def check_address(path: str) -> None:
    """Checks that TensorFlow supports the scheme of an address, and that its storage answers.

    Each storage is asked once per process. Local paths always pass.

    Raises:
        UserError: If the scheme is unknown, or the storage cannot be reached or does not answer
            within `PATIENCE_SECONDS`.
    """
    if not is_remote(path):
        return
    scheme, _, rest = path.partition("://")
    root = f"{scheme}://{rest.partition('/')[0]}"
    if root not in _answered:
        _ask_storage(path, scheme, root)
        _answered.add(root)


def _ask_storage(path: str, scheme: str, root: str) -> None:
    """Asks the storage at `root` whether a path exists, to see that it answers."""
    import tensorflow as tf

    known = [name for name in tf.io.gfile.get_registered_schemes() if name]
    if scheme not in known:
        names = ", ".join(f"{name}://" for name in sorted(known))
        if scheme == "hf":
            raise UserError(
                f"`{path}` is on the Hugging Face Hub: make a run folder of the model first, with "
                'txl_tf.load("hf://user/model").save("FOLDER")'
            )
        raise UserError(
            f"`{path}` must be a local path or an address that TensorFlow supports: {names}. "
            f"Received: {scheme}://"
        )
    errors: list[tf.errors.OpError] = []

    def ask() -> None:
        try:
            tf.io.gfile.exists(path)
        except tf.errors.OpError as error:
            errors.append(error)

    # In a thread, because the call has no time limit and cannot be interrupted.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(NOTICE_SECONDS)
    if thread.is_alive():
        print(
            f"{root} has not answered yet; waiting up to {PATIENCE_SECONDS:.0f} seconds",
            file=sys.stderr,
        )
        thread.join(PATIENCE_SECONDS - NOTICE_SECONDS)
    if thread.is_alive():
        raise UserError(f"`{path}`: {root} did not answer within {PATIENCE_SECONDS:.0f} seconds")
    if errors:
        raise UserError(f"`{path}`: {explain(errors[0])}") from errors[0]


def check_folder(path: str, error: type[UserError] = UserError) -> None:
    """Checks that a local path is a folder, or that a folder can be made there.

    Args:
        path: The path. Remote addresses always pass.
        error: The class of the error.

    Raises:
        UserError: If the path or one of its parents is a file.
    """
    if is_remote(path):
        return
    place = os.path.abspath(path)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        raise error(f"`{path}` must be a folder. Received: {place}, which is a file")


@contextlib.contextmanager
def open_file(path: str) -> Iterator[BinaryIO]:
    """Opens a local or remote file for reading.

    Raises:
        OSError: If it cannot be opened or read; a `StorageError` if it is remote.
        UserError: If its storage does not answer.
    """
    if not is_remote(path):
        with open(path, "rb") as file:
            yield file
        return
    if _storage is not None:
        with _storage.open(path) as file:
            yield file
        return
    import tensorflow as tf

    with access_path(path), tf.io.gfile.GFile(path, "rb") as file:
        yield file


def hash_file(path: str) -> str:
    """Returns the SHA-256 of a file in hexadecimal digits.

    Raises:
        OSError: If the file cannot be opened or read.
        UserError: If its storage does not answer.
    """
    digest = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(2**24):
            digest.update(block)
    return digest.hexdigest()


def get_size(path: str) -> int | None:
    """Returns the size of a file in bytes, or `None` if it is missing.

    Raises:
        OSError: If that cannot be determined; a `StorageError` if the file is remote.
        UserError: If its storage does not answer.
    """
    if not is_remote(path):
        return os.path.getsize(path) if os.path.isfile(path) else None
    if _storage is not None:
        return _storage.get_size(path)
    import tensorflow as tf

    with access_path(path):
        return tf.io.gfile.stat(path).length if tf.io.gfile.exists(path) else None


def upload_files(source: Path, folder: str, names: Iterable[str]) -> None:
    """Copies files into a remote folder, in order.

    Raises:
        StorageError: If a file cannot be written.
    """
    if _storage is not None:
        for name in names:
            _storage.upload(source / name, join_path(folder, name))
        return
    import tensorflow as tf

    with access_path(folder):
        tf.io.gfile.makedirs(folder)
        for name in names:
            tf.io.gfile.copy(str(source / name), join_path(folder, name), overwrite=True)


def remove_file(path: str) -> None:
    """Removes a file if it exists.

    Raises:
        OSError: If it cannot be removed; a `StorageError` if it is remote.
    """
    if not is_remote(path):
        Path(path).unlink(missing_ok=True)
        return
    if _storage is not None:
        _storage.remove(path)
        return
    import tensorflow as tf

    with access_path(path):
        if tf.io.gfile.exists(path):
            tf.io.gfile.remove(path)


@contextlib.contextmanager
def access_path(path: str) -> Iterator[None]:
    """Checks that a storage answers, and re-raises errors of access with the path.

    Raises:
        UserError: If the storage does not answer.
        StorageError: If the path cannot be read or written.
    """
    check_address(path)
    kinds: tuple[type[Exception], ...] = (OSError,)
    if is_remote(path) or "tensorflow" in sys.modules:  # local files need no TensorFlow
        import tensorflow as tf

        kinds = (OSError, tf.errors.OpError)
    with explain_errors(f"`{path}`", *kinds, raised=StorageError):
        yield
