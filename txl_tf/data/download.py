"""Published files: downloaded and checked."""

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from txl_tf.data.aside import work_aside
from txl_tf.data.files import hash_file
from txl_tf.data.transfer import TransferError, transfer
from txl_tf.errors import UserError, explain

SUMS_FILE = "SHA256SUMS"


@dataclass(frozen=True)
class PublishedFile:
    """A published file.

    Args:
        name: Its name in `raw_dir`.
        urls: The mirrors, tried in order.
        size: Its bytes, where publicly known.
        sha256: Its SHA-256 in hexadecimal digits, where publicly known.
    """

    name: str
    urls: tuple[str, ...]
    size: int | None = None
    sha256: str | None = None


class DownloadError(UserError):
    """A published file that cannot be had, or that is not what was published."""


def fetch(file: PublishedFile, raw_dir: Path) -> Path:
    """Gets a published file, from `raw_dir` if it is there, else from the network.

    A file appears in `raw_dir` only when it is whole: when it has the known size and SHA-256, or,
    if neither is known, the length that the server states. An interrupted download starts anew.

    A SHA-256 that is not publicly known is recorded in `raw_dir`/SHA256SUMS when the file is used
    for the first time, and compared from then on; `sha256sum -c` reads that file.

    Args:
        file: The file.
        raw_dir: The folder that it is put into, made if it is missing.

    Returns:
        Its path.

    Raises:
        DownloadError: If the file there is another one than expected, or no mirror gives it.
    """
    path = raw_dir / file.name
    expected = replace(file, sha256=file.sha256 or _read_sums(raw_dir).get(file.name))
    if not path.is_file():
        _download(expected, raw_dir)
    elif fault := _find_fault(path, expected):
        hint = "Delete it and run again."
        if expected.sha256 and not file.sha256:
            hint += f" If it was changed on purpose, delete its line in `{raw_dir / SUMS_FILE}`."
        raise DownloadError(f"`{path}` is another file than expected: {fault}. {hint}")
    if not expected.sha256:
        _record_sum(path)
    return path


def _download(file: PublishedFile, raw_dir: Path) -> None:
    failures = []
    try:
        with work_aside(raw_dir, f"{file.name}.part-") as aside:
            for url in file.urls:
                print(f"Downloading {url}")
                fault = _try_mirror(url, aside / file.name, file)
                if fault is None:
                    (aside / file.name).replace(raw_dir / file.name)
                    return
                print(f"{url} failed: {fault}")
                failures.append(f"{url} ({fault})")
    except OSError as error:
        raise DownloadError(
            f"`{file.name}` could not be downloaded into `{raw_dir}`: {explain(error)}"
        ) from error
    raise DownloadError(
        f"`{file.name}` could not be downloaded: {'; '.join(failures)}. "
        f"Get it from there in another way and put it into `{raw_dir}`."
    )


def _try_mirror(url: str, path: Path, file: PublishedFile) -> str | None:
    """Downloads a file from one place.

    Args:
        url: The place.
        path: Where to.
        file: The file.

    Returns:
        `None` if it is there now, else why not.

    Raises:
        OSError: If it could not be written.
    """
    try:
        transfer(url, path, size=file.size, is_hashed=file.sha256 is not None)
    except TransferError as error:
        return str(error)
    return _find_fault(path, file)


def _find_fault(path: Path, file: PublishedFile) -> str | None:
    """Returns in which way a file is not the published one; `None` if it is."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"it has {size:,} bytes instead of {file.size:,}"
    if not file.sha256:
        return None
    sha256 = hash_file(str(path))
    if sha256 != file.sha256.lower():
        return f"its SHA-256 is {sha256} instead of {file.sha256}"
    return None


def _read_sums(raw_dir: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file that SHA256SUMS names."""
    path = raw_dir / SUMS_FILE
    if not path.is_file():
        return {}
    # "*" is how sha256sum marks a file that it read as binary.
    lines = re.findall(r"(?m)^([0-9A-Fa-f]{64}) [ *](.+)$", path.read_text("utf-8", "replace"))
    return {name: sha256.lower() for sha256, name in lines}


def _record_sum(path: Path) -> None:
    """Adds a file to SHA256SUMS, or says why it cannot."""
    sums, sha256 = path.with_name(SUMS_FILE), hash_file(str(path))
    try:
        text = sums.read_text("utf-8", "replace") if sums.is_file() else ""
        lines = [*text.splitlines(), f"{sha256}  {path.name}"]
        with work_aside(path.parent, f"{SUMS_FILE}.part-") as aside:
            (aside / SUMS_FILE).write_text("".join(f"{line}\n" for line in lines), "utf-8")
            (aside / SUMS_FILE).replace(sums)
    except OSError as error:  # a folder that others own must do, too
        print(f"The SHA-256 of `{path}` is not recorded: {error}", file=sys.stderr)
    else:
        print(f"No SHA-256 of `{path}` is published; `{sums}` records the one it has.")
