"""Downloading published files, checking their size and SHA-256, and unpacking them."""

import re
import sys
import tarfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import requests

from txl_tf.data.files import hash_file
from txl_tf.data.temporary_folders import work_aside
from txl_tf.errors import UserError, explain
from txl_tf.progress import Bar

SUMS_FILE = "SHA256SUMS"
# Some servers refuse the name that Python's clients give themselves, and many call a .tgz file
# gzip-encoded.
_HEADERS = {"User-Agent": "txl_tf", "Accept-Encoding": "identity"}
_TIMEOUT = 30  # seconds, to connect and between two packets
_BLOCK_SIZE = 2**16
_GRACE = 60  # seconds; from then on a transfer must be as fast, on average, as
_LEAST_SPEED = 2**14  # bytes per second
_LARGEST = 2**35  # bytes of a file whose size is not published


@dataclass(frozen=True)
class PublishedFile:
    """A file to download; its size and SHA-256 are compared if they are published."""

    name: str  # in `raw_dir`
    urls: tuple[str, ...]  # of the mirrors, in the order in which they are tried
    size: int | None = None  # bytes
    sha256: str | None = None  # hexadecimal digits


def fetch(file: PublishedFile, raw_dir: Path) -> Path:
    """Returns a published file, and downloads it if `raw_dir` does not contain it.

    A file appears in `raw_dir` only when it is complete: when it has the published size and
    SHA-256 or, if neither is published, the length that the server states. An interrupted download
    starts again from the beginning.

    A SHA-256 that is not published is recorded in `raw_dir`/SHA256SUMS when the file is first
    used, and compared from then on; `sha256sum -c` can read that file.
    """
    path = raw_dir / file.name
    expected = replace(file, sha256=file.sha256 or _read_sums(raw_dir).get(file.name))
    if not path.is_file():
        _download(expected, raw_dir)
    elif fault := _find_fault(path, expected):
        hint = "Delete it and run again."
        if expected.sha256 and not file.sha256:
            hint += f" If you changed it on purpose, delete its line in `{raw_dir / SUMS_FILE}`."
        raise UserError(f"`{path}` is not the expected file: {fault}. {hint}")
    if not expected.sha256:
        _record_sum(path)
    return path


def _download(file: PublishedFile, raw_dir: Path) -> None:
    failures = []
    try:
        with work_aside(raw_dir, f"{file.name}.part-") as aside:
            for url in file.urls:
                print(f"Downloading {url}")
                try:
                    _transfer(url, aside / file.name, file)
                    fault = _find_fault(aside / file.name, file)
                except requests.RequestException as error:
                    fault = _find_cause(error)
                if fault is None:
                    (aside / file.name).replace(raw_dir / file.name)
                    return
                print(f"{url} failed: {fault}")
                failures.append(f"{url} ({fault})")
    except OSError as error:
        raise UserError(
            f"`{file.name}` could not be downloaded into `{raw_dir}`: {explain(error)}"
        ) from error
    raise UserError(
        f"`{file.name}` could not be downloaded: {'; '.join(failures)}. "
        f"Download it in another way and put it into `{raw_dir}`."
    )


def _transfer(url: str, path: Path, file: PublishedFile) -> None:
    """Writes the body of an HTTP response to a file as it is sent, with a progress bar."""
    start = time.monotonic()
    with (
        requests.get(url, headers=_HEADERS, stream=True, timeout=_TIMEOUT) as response,
        path.open("wb") as target,
        Bar(path.name, unit="B", unit_scale=True, leave=False) as bar,
    ):
        if response.status_code != requests.codes.ok:
            raise requests.RequestException(f"it answers {response.status_code} {response.reason}")
        stated = response.headers.get("Content-Length", "")
        size = file.size or (int(stated) if stated.isdecimal() else None)
        is_chunked = "chunked" in response.headers.get("Transfer-Encoding", "")
        if size is None and not (is_chunked or file.sha256):
            raise requests.RequestException("its response has no length: it may be incomplete")
        bar.reset(size)
        received = 0
        # One read of the socket at a time: a server that sends a byte now and then would hold a
        # larger read for days.
        while block := _read_some(response):
            received += len(block)
            seconds = time.monotonic() - start
            if received > (size or _LARGEST):
                raise requests.RequestException(f"it sends more than {size or _LARGEST:,} bytes")
            if seconds > _GRACE and received < _LEAST_SPEED * seconds:
                raise requests.RequestException(
                    f"it is too slow: {received:,} bytes in {seconds:,.0f} seconds"
                )
            target.write(block)
            bar.update(len(block))
        if not received:
            raise requests.RequestException("it sent nothing")
        if size is not None and received < size:
            raise requests.RequestException(f"it sent {received:,} bytes instead of {size:,}")


def _read_some(response: requests.Response) -> bytes:
    """Returns the next bytes of a body, empty at its end."""
    try:
        return bytes(response.raw.read1(_BLOCK_SIZE, decode_content=False))
    except Exception as error:  # of urllib3 and below it
        raise requests.RequestException(error) from error


def _find_cause(error: Exception) -> str:
    """Returns the message of the first cause of a network error: one line, without addresses."""
    while True:
        inner = (*error.args, getattr(error, "reason", None), error.__cause__)
        cause = next((item for item in inner if isinstance(item, Exception)), None)
        if cause is None:
            line = explain(error).split(" for url:")[0]
            return "".join(filter(str.isprintable, line))[:200]
        error = cause


def _find_fault(path: Path, file: PublishedFile) -> str | None:
    """Returns how a file differs from the published one; `None` if it does not."""
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
    path = raw_dir / SUMS_FILE
    if not path.is_file():
        return {}
    # sha256sum writes "*" before the name of a file that it read as binary.
    lines = re.findall(r"(?m)^([0-9A-Fa-f]{64}) [ *](.+)$", path.read_text("utf-8", "replace"))
    return {name: sha256.lower() for sha256, name in lines}


def _record_sum(path: Path) -> None:
    """Adds a file to SHA256SUMS, or prints why that is impossible."""
    sums, sha256 = path.with_name(SUMS_FILE), hash_file(str(path))
    try:
        text = sums.read_text("utf-8", "replace") if sums.is_file() else ""
        lines = [*text.splitlines(), f"{sha256}  {path.name}"]
        with work_aside(path.parent, f"{SUMS_FILE}.part-") as aside:
            (aside / SUMS_FILE).write_text("".join(f"{line}\n" for line in lines), "utf-8")
            (aside / SUMS_FILE).replace(sums)
    except OSError as error:  # such as in a folder that the user may only read
        print(f"The SHA-256 of `{path}` is not recorded: {error}", file=sys.stderr)
    else:
        print(f"The SHA-256 of `{path}` is not published; `{sums}` now records it.")


def unpack(archive_path: Path, folder: Path) -> None:
    """Unpacks a .tar.gz or .tgz file; each file appears in `folder` only when it is complete.

    A .zip is read without unpacking (see `txl_tf.data.text.text_files`), but a compressed tar
    archive cannot be read from the middle.
    """
    print(f"Unpacking `{archive_path}`")
    try:
        with (
            tarfile.open(archive_path) as archive,
            work_aside(folder, f"{archive_path.name}.part-") as aside,
        ):
            archive.extractall(aside, filter="data")
            if not any(path.is_file() for path in aside.rglob("*")):
                raise UserError(f"`{archive_path}` holds no files")
            _move_files(aside, folder)
    except tarfile.FilterError as error:
        raise UserError(f"`{archive_path}` is not safe to unpack: {error}") from error
    except UserError:
        raise
    except Exception as error:  # damaged archives raise what they like
        reason = f"could not be unpacked into `{folder}`: {explain(error)}"
        if getattr(error, "errno", None) is None:
            reason = f"is damaged: {explain(error)}. Delete it and run again."
        raise UserError(f"`{archive_path}` {reason}") from error


def _move_files(source: Path, folder: Path) -> None:
    """Moves all files below one folder to the same relative paths below another."""
    for path in sorted(source.rglob("*")):
        target = folder / path.relative_to(source)
        if path.is_dir() and not path.is_symlink():
            target.mkdir(exist_ok=True)
        else:
            path.replace(target)
