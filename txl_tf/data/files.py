"""Files of a data set: here, or at an address that tensorflow can read and write."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO


def join_path(folder: str, file: str) -> str:
    """Returns the path of a file in a folder, which may be an address."""
    return f"{folder.rstrip('/')}/{file}"


def is_remote(path: str) -> bool:
    """Tells whether a path is an address, such as "gs://bucket/folder"."""
    return "://" in path


def open_file(path: str) -> BinaryIO:
    """Opens a file for reading; a remote one through tensorflow."""
    if not is_remote(path):
        return open(path, "rb")
    import tensorflow as tf

    return tf.io.gfile.GFile(path, "rb")


def get_size(path: str) -> int | None:
    """Returns the bytes of a file, or `None` if it is missing.

    Raises:
        OSError: the address cannot be reached.
    """
    if not is_remote(path):
        return os.path.getsize(path) if os.path.isfile(path) else None
    import tensorflow as tf

    with _explain_remote(path):
        return tf.io.gfile.stat(path).length if tf.io.gfile.exists(path) else None


def upload_files(source: Path, folder: str, names: Iterable[str]) -> None:
    """Copies files into a remote folder, in order.

    Raises:
        OSError: one cannot be written.
    """
    import tensorflow as tf

    with _explain_remote(folder):
        tf.io.gfile.makedirs(folder)
        for name in names:
            tf.io.gfile.copy(str(source / name), join_path(folder, name), overwrite=True)


def remove_file(path: str) -> None:
    """Removes a file, if it is there.

    Raises:
        OSError: it cannot be removed.
    """
    if not is_remote(path):
        Path(path).unlink(missing_ok=True)
        return
    import tensorflow as tf

    with _explain_remote(path):
        if tf.io.gfile.exists(path):
            tf.io.gfile.remove(path)


@contextlib.contextmanager
def _explain_remote(path: str) -> Iterator[None]:
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(f"`{path}`: {error.message.splitlines()[0]}") from error
