"""Unpacking the published archives.

A .zip is read as it is, see `txl_tf.data.text_files`; an archive of another kind cannot be read
from its middle.
"""

import errno
import gzip
import lzma
import struct
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath, PureWindowsPath

from txl_tf.data.aside import work_aside
from txl_tf.data.download import DownloadError

_BLOCK_SIZE = 2**18

# What the standard library's readers raise on damaged archives.
_DAMAGE = (
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    LookupError,
    RuntimeError,
    UnicodeDecodeError,
)


def unpack(archive_path: Path, folder: Path, members: Callable[[str], bool] | None = None) -> None:
    """Unpacks an archive; a file is under its name in `folder` only once it is whole.

    Args:
        archive_path: A .tar.gz or .tgz file.
        folder: Where to, made if it is missing; files of the same names are replaced.
        members: Tells of a path in the archive, such as "data/train.txt", whether to unpack it;
            `None` for all. Empty folders are left out.

    Raises:
        DownloadError: If the archive is damaged, holds none of the members, or one that would
            leave `folder` (then nothing is written), or if there is no room.
    """
    print(f"Unpacking `{archive_path}`")
    wanted = members or (lambda name: True)
    try:
        _unpack_tar(archive_path, folder, wanted)
    except tarfile.FilterError as error:
        raise DownloadError(f"`{archive_path}` is not safe to unpack: {error}") from error
    except (OSError, *_DAMAGE) as error:
        # Damaged archives lead their readers to places that no file has.
        if getattr(error, "errno", None) not in (None, errno.EINVAL):
            raise DownloadError(
                f"`{archive_path}` could not be unpacked into `{folder}`: {error}"
            ) from error
        raise DownloadError(
            f"`{archive_path}` is damaged: {error or type(error).__name__}; delete it and run again"
        ) from error


def _unpack_tar(archive_path: Path, folder: Path, wanted: Callable[[str], bool]) -> None:
    if not hasattr(tarfile, "data_filter"):
        version = sys.version.split()[0]
        raise DownloadError(
            f"Python must be 3.11.4 or later to unpack `{archive_path}`. Received: {version}"
        )
    with gzip.open(archive_path) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
        chosen = [
            member
            for member in archive
            if not member.isdir() and wanted(PurePosixPath(member.name).as_posix())
        ]
        while stream.read(_BLOCK_SIZE):  # to the end, where the checksum is
            pass
        # The filter would make an absolute name relative; it is refused as any other that leaves.
        _check_names(archive_path, [member.name for member in chosen])
        for member in chosen:
            tarfile.data_filter(member, str(folder))
        with work_aside(folder, f"{archive_path.name}.part-") as aside:
            archive.extractall(aside, chosen, filter="data")
            _move_files(aside, folder)


def _check_names(archive_path: Path, names: list[str]) -> None:
    """Checks that there are members, and that none of them leaves the folder."""
    if not names:
        raise DownloadError(f"`{archive_path}` holds none of the files that were expected in it")
    for name in names:
        path = PureWindowsPath(name)  # it knows both slashes, and drives
        if path.drive or path.root or ".." in path.parts:
            raise DownloadError(
                f"`{archive_path}` is not safe to unpack: {name!r} leaves the folder"
            )


def _move_files(source: Path, folder: Path) -> None:
    """Moves all files below one folder to the same places below another."""
    for path in sorted(source.rglob("*")):
        target = folder / path.relative_to(source)
        if path.is_dir() and not path.is_symlink():
            target.mkdir(exist_ok=True)
        else:
            path.replace(target)
