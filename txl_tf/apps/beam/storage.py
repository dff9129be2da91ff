"""Files that all workers reach: local paths and the addresses that Beam knows."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from txl_tf.data.files import get_storage, is_remote, join_path, use_storage

WORK_PREFIX = ".pipeline-"  # of the names of folders with temporary files
_PART = ".part-"  # in the names of files that are not complete


class BeamStorage:
    """Reads and writes files with Beam's `FileSystems`; a `txl_tf.data.files.Storage`."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, float]] = {}  # size and time of each file in `find`

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading, without unpacking it."""
        return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)

    def get_size(self, path: str) -> int | None:
        """Returns the size of a file in bytes, or `None` if it is missing."""
        if path in self._found:
            return self._found[path][0]
        return FileSystems.get_filesystem(path).size(path) if FileSystems.exists(path) else None

    def get_time(self, path: str) -> float:
        """Returns the time of the last change of a file, in seconds."""
        return self._found[path][1] if path in self._found else FileSystems.last_updated(path)

    def find(self, pattern: str) -> list[str]:
        """Returns the files that match a pattern, in the order of their names."""
        (matched,) = FileSystems.match([pattern])
        for file in matched.metadata_list:
            self._found[file.path] = (file.size_in_bytes, file.last_updated_in_seconds or 0)
        return sorted(file.path for file in matched.metadata_list)


@contextmanager
def create_file(path: str) -> Iterator[BinaryIO]:
    """Opens a new file, which appears under its name when it is complete.

    A name must not be used twice: not every storage can replace a file by renaming another.
    """
    part = f"{path}{_PART}{uuid.uuid4().hex}"
    with FileSystems.create(part, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        yield file
    FileSystems.rename([part], [path])


def name_once(folder: str, name: str, suffix: str = "") -> str:
    """Returns the path of a file that no other attempt at the same work writes."""
    return join_path(folder, f"{name}-{uuid.uuid4().hex}{suffix}")


def read_file(path: str) -> bytes:
    """Returns the content of a file."""
    with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        return file.read()


def write_file(path: str, data: bytes) -> None:
    """Writes a file whole, with a new name; see `create_file`."""
    with create_file(path) as file:
        file.write(data)


def move_file(source: str, target: str) -> None:
    """Renames a file; an older file of that name is replaced.

    A call that was interrupted may have renamed it already: then nothing happens.
    """
    if not exists(source) and exists(target):
        return
    if is_remote(target) and exists(target):
        FileSystems.delete([target])
    FileSystems.rename([source], [target])


def exists(path: str) -> bool:
    """Returns whether there is a file or a folder."""
    return FileSystems.exists(path)


def list_names(folder: str) -> list[str]:
    """Returns the names of the complete files in a folder, sorted; none if there is no folder."""
    if not is_remote(folder):
        names = os.listdir(folder) if os.path.isdir(folder) else []
    else:
        (matched,) = FileSystems.match([join_path(folder, "*")])
        names = [file.path.rpartition("/")[2] for file in matched.metadata_list]
    return sorted(name for name in names if _PART not in name)


def remove_file(path: str) -> None:
    """Removes a file if it exists."""
    if not is_remote(path):  # Beam takes a path for a pattern
        Path(path).unlink(missing_ok=True)
    elif exists(path):
        FileSystems.delete([path])


def remove_folder(folder: str) -> None:
    """Removes a folder and all its files, if it exists."""
    if not is_remote(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return
    (matched,) = FileSystems.match([join_path(folder, "**")])
    FileSystems.delete([file.path for file in matched.metadata_list])
    if exists(folder):  # an object store has no folders
        FileSystems.delete([folder])


def install_storage() -> None:
    """Lets Beam read what is at addresses, until this process ends, unless it does so already.

    A worker calls it; its threads share what is installed.
    """
    if get_storage() is None:
        ExitStack().enter_context(use_storage(BeamStorage()))
