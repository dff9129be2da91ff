"""Files of a data set: here, or at an address that tensorflow can read."""

import os
from typing import BinaryIO


def join_path(folder: str, file: str) -> str:
    """Returns the path of a file in a folder, which may be an address."""
    return f"{folder.rstrip('/')}/{file}"


def _is_remote(path: str) -> bool:
    return "://" in path


def open_file(path: str) -> BinaryIO:
    """Opens a file for reading; a remote one through tensorflow."""
    if not _is_remote(path):
        return open(path, "rb")
    import tensorflow as tf

    return tf.io.gfile.GFile(path, "rb")


def get_size(path: str) -> int | None:
    """Returns the bytes of a file, or `None` if it is missing."""
    if not _is_remote(path):
        return os.path.getsize(path) if os.path.isfile(path) else None
    import tensorflow as tf

    return tf.io.gfile.stat(path).length if tf.io.gfile.exists(path) else None
