"""Unpacking the published .tar.gz and .tgz archives.

A .zip is read without unpacking (see `txl_tf.data.text.text_files`), but a compressed tar archive
cannot be read from the middle.
"""

import tarfile
from pathlib import Path

from txl_tf.data.download import DownloadError
from txl_tf.data.temporary_folders import work_aside
from txl_tf.errors import explain


def unpack(archive_path: Path, folder: Path) -> None:
    """Unpacks an archive; each file appears in `folder` only when it is complete.

    Args:
        archive_path: A .tar.gz or .tgz file.
        folder: The folder to unpack into, created if it is missing. Files with the same names are
            replaced.

    Raises:
        DownloadError: If the archive is damaged or empty; if a member would leave `folder`, in
            which case nothing is written; or if the files cannot be written.
    """
    print(f"Unpacking `{archive_path}`")
    try:
        with (
            tarfile.open(archive_path) as archive,
            work_aside(folder, f"{archive_path.name}.part-") as aside,
        ):
            archive.extractall(aside, filter="data")
            if not any(path.is_file() for path in aside.rglob("*")):
                raise DownloadError(f"`{archive_path}` holds no files")
            _move_files(aside, folder)
    except tarfile.FilterError as error:
        raise DownloadError(f"`{archive_path}` is not safe to unpack: {error}") from error
    except DownloadError:
        raise
    except Exception as error:  # damaged archives raise what they like
        reason = f"could not be unpacked into `{folder}`: {explain(error)}"
        if getattr(error, "errno", None) is None:
            reason = f"is damaged: {explain(error)}. Delete it and run again."
        raise DownloadError(f"`{archive_path}` {reason}") from error


def _move_files(source: Path, folder: Path) -> None:
    """Moves all files below one folder to the same relative paths below another."""
    for path in sorted(source.rglob("*")):
        target = folder / path.relative_to(source)
        if path.is_dir() and not path.is_symlink():
            target.mkdir(exist_ok=True)
        else:
            path.replace(target)
