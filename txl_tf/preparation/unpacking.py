"""Unpacking the published .tar.gz and .tgz archives.

A .zip is read without unpacking (see `txl_tf.data.text_files`), but a compressed tar archive cannot
be read from the middle.
"""

import errno
import gzip
import lzma
import struct
import sys
import tarfile
import zlib
from pathlib import Path, PureWindowsPath

from txl_tf.data.aside import work_aside
from txl_tf.data.download import DownloadError

_BLOCK_SIZE = 2**18

# The errors that the standard library's readers raise for damaged archives.
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


def unpack(archive_path: Path, folder: Path) -> None:
    """Unpacks an archive; each file appears in `folder` only when it is complete.

    Args:
        archive_path: A .tar.gz or .tgz file.
        folder: The folder to unpack into, created if it is missing. Files with the same names are
            replaced, and empty folders of the archive are left out.

    Raises:
        DownloadError: If the archive is damaged or empty; if a member would leave `folder`, in
            which case nothing is written; or if the files cannot be written.
    """
    print(f"Unpacking `{archive_path}`")
    try:
        _unpack_tar(archive_path, folder)
    except tarfile.FilterError as error:
        raise DownloadError(f"`{archive_path}` is not safe to unpack: {error}") from error
    except (OSError, *_DAMAGE) as error:
        # Damaged archives make their readers seek to impossible offsets, which is EINVAL.
        if getattr(error, "errno", None) not in (None, errno.EINVAL):
            raise DownloadError(
                f"`{archive_path}` could not be unpacked into `{folder}`: {error}"
            ) from error
        raise DownloadError(
            f"`{archive_path}` is damaged: {error or type(error).__name__}. "
            "Delete it and run again."
        ) from error


def _unpack_tar(archive_path: Path, folder: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        version = sys.version.split()[0]
        raise DownloadError(
            f"Python must be 3.11.4 or later to unpack `{archive_path}`. Received: {version}"
        )
    with gzip.open(archive_path) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
        files = [member for member in archive if not member.isdir()]
        while stream.read(_BLOCK_SIZE):  # to the end, where the checksum is
            pass
        # The filter would make an absolute name relative, but such archives are refused.
        _check_names(archive_path, [member.name for member in files])
        for member in files:
            tarfile.data_filter(member, str(folder))
        with work_aside(folder, f"{archive_path.name}.part-") as aside:
            archive.extractall(aside, files, filter="data")
            _move_files(aside, folder)


def _check_names(archive_path: Path, names: list[str]) -> None:
    """Checks that there are files, and that none of them would leave the folder."""
    if not names:
        raise DownloadError(f"`{archive_path}` holds no files")
    for name in names:
        path = PureWindowsPath(name)  # it recognises both slashes, and drives
        if path.drive or path.root or ".." in path.parts:
            raise DownloadError(
                f"`{archive_path}` is not safe to unpack: {name!r} leaves the folder"
            )


def _move_files(source: Path, folder: Path) -> None:
    """Moves all files below one folder to the same relative paths below another."""
    for path in sorted(source.rglob("*")):
        target = folder / path.relative_to(source)
        if path.is_dir() and not path.is_symlink():
            target.mkdir(exist_ok=True)
        else:
            path.replace(target)
