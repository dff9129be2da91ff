"""Files that all workers reach: local paths and the addresses that Beam knows."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from txl_tf.data.files import get_storage, is_remote, join_path, use_storage
from txl_tf.data.temporary_folders import work_aside

_PREFIX = ".pipeline-"


class BeamStorage:
    """Reads and writes files with Beam's `FileSystems`; a `txl_tf.data.files.Storage`."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}  # of the files that `find` has found

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading, without unpacking it."""
        return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)

    def get_size(self, path: str) -> int | None:
        """Returns the size of a file in bytes, or `None` if it is missing."""
        if path in self._sizes:
            return self._sizes[path]
        return FileSystems.get_filesystem(path).size(path) if FileSystems.exists(path) else None

    def find(self, pattern: str) -> list[str]:
        """Returns the files that match a pattern, in the order of their names."""
        (matched,) = FileSystems.match([pattern])
        self._sizes |= {file.path: file.size_in_bytes for file in matched.metadata_list}
        return sorted(file.path for file in matched.metadata_list)

    def upload(self, source: Path, path: str) -> None:
        """Copies a local file to an address; an older file there is replaced."""
        with source.open("rb") as file, create_file(path) as copy:
            shutil.copyfileobj(file, copy)

    def remove(self, path: str) -> None:
        """Removes a file."""
        FileSystems.delete([path])


def install_storage() -> None:
    """Makes this process read addresses with Beam; functions that read files in workers call it."""
    if get_storage() is None:
        ExitStack().enter_context(use_storage(BeamStorage()))


@contextmanager
def create_work_folder(parent: str) -> Iterator[str]:
    """Yields the path of a new folder for the files of workers, and removes it at the end."""
    if not is_remote(parent):
        with work_aside(Path(parent), _PREFIX) as local:
            yield str(local)
        return
    folder = join_path(parent, f"{_PREFIX}{uuid.uuid4().hex}")
    try:
        yield folder
    finally:
        if files := BeamStorage().find(join_path(folder, "**")):
            FileSystems.delete(files)


def name_file(folder: str) -> str:
    """Returns a new path, so that a worker that repeats a step writes another file."""
    return join_path(folder, uuid.uuid4().hex)


def create_file(path: str) -> BinaryIO:
    """Opens a file for writing, without packing it."""
    return FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED)
