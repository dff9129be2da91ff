"""Downloading published files, checking their size and SHA-256, and unpacking them."""

import re
import sys
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

import requests
import urllib3

from txl_tf.data.files import hash_file, write_text
from txl_tf.data.temporary_folders import work_aside
from txl_tf.errors import UserError, explain, explain_errors
from txl_tf.progress import Bar

SUMS_FILE = "SHA256SUMS"
# Some servers reject the default names of Python clients, and many declare a .tgz file as
# gzip-encoded.
_HEADERS = {"User-Agent": "txl_tf", "Accept-Encoding": "identity"}
_TIMEOUT = 30  # seconds, to connect and between two packets
_BLOCK_SIZE = 2**16


@dataclass(frozen=True)
class PublishedFile:
    """A file to download; its size and SHA-256 are checked if they are published."""

    name: str  # in `raw_dir`
    urls: tuple[str, ...]  # of the mirrors, in the order in which they are tried
    size: int | None = None  # bytes
    sha256: str | None = None  # hexadecimal digits

    def find_fault(self, path: Path) -> str | None:
        """Returns how a file differs from the published one; `None` if it does not."""
        size = path.stat().st_size
        if self.size is not None and size != self.size:
            return f"it has {size:,} bytes instead of {self.size:,}"
        if self.sha256 and (sha256 := hash_file(str(path))) != self.sha256.lower():
            return f"its SHA-256 is {sha256} instead of {self.sha256}"
        return None


def fetch(file: PublishedFile, raw_dir: Path) -> Path:
    """Returns a published file, and downloads it if `raw_dir` does not contain it.

    A file appears in `raw_dir` only when it is complete: when it has the published size and
    SHA-256 or, if neither is published, the length that the server states. An interrupted download
    starts again from the beginning.

    A SHA-256 that is not published is recorded in `raw_dir`/SHA256SUMS when the file is first
    used, and compared from then on; `sha256sum -c` can read that file.
    """
    path, sums = raw_dir / file.name, raw_dir / SUMS_FILE
    listed = sums.read_text("utf-8", "replace") if sums.is_file() else ""
    # sha256sum writes "*" before the name of a file that it read as binary.
    found = re.search(rf"(?mi)^([0-9a-f]{{64}}) [ *]{re.escape(file.name)}$", listed)
    expected = replace(file, sha256=file.sha256 or (found and found[1]))
    if not path.is_file():
        _download(expected, raw_dir)
    elif fault := expected.find_fault(path):
        hint = "Delete it and run again."
        if not file.sha256 and expected.sha256:
            hint += f" If you changed it on purpose, delete its line in `{sums}`."
        raise UserError(f"`{path}` is not the expected file: {fault}. {hint}")
    if not expected.sha256:
        sha256 = hash_file(str(path))
        # Read again: another process may have added a line during the download.
        listed = sums.read_text("utf-8", "replace") if sums.is_file() else ""
        lines = [*listed.splitlines(), f"{sha256}  {file.name}"]
        try:
            write_text(str(sums), "".join(f"{line}\n" for line in lines))
            print(f"The SHA-256 of `{path}` is not published; `{sums}` now records it.")
        except OSError as error:  # such as in a folder that the user may only read
            print(f"The SHA-256 of `{path}` is not recorded: {explain(error)}", file=sys.stderr)
    return path


def _download(file: PublishedFile, raw_dir: Path) -> None:
    """Downloads a file from the first mirror that works, and reports why earlier ones failed."""
    failures = []
    with (
        explain_errors(f"`{file.name}` could not be downloaded into `{raw_dir}`", OSError),
        work_aside(raw_dir, f"{file.name}.part-") as aside,
    ):
        for url in file.urls:
            print(f"Downloading {url}")
            try:
                _transfer(url, aside / file.name, file)
                fault = file.find_fault(aside / file.name)
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                fault = _explain_cause(error)
            if fault is None:
                (aside / file.name).replace(raw_dir / file.name)
                return
            print(f"{url} failed: {fault}")
            failures.append(f"{url} ({fault})")
    raise UserError(
        f"`{file.name}` could not be downloaded: {'; '.join(failures)}. "
        f"Download it in another way and put it into `{raw_dir}`."
    )


def _transfer(url: str, path: Path, file: PublishedFile) -> None:
    """Writes the body of an HTTP response to a file as it is sent, with a progress bar."""
    with requests.get(url, headers=_HEADERS, stream=True, timeout=_TIMEOUT) as response:
        if response.status_code != requests.codes.ok:
            raise requests.RequestException(f"it answers {response.status_code} {response.reason}")
        # A body that is shorter than its stated length is an error of urllib3.
        size = file.size or response.raw.length_remaining
        if not (size or file.sha256):
            raise requests.RequestException("its response has no length: it may be incomplete")
        with (
            path.open("wb") as target,
            Bar(file.name, total=size, unit="B", unit_scale=True, leave=False) as bar,
        ):
            for block in response.raw.stream(_BLOCK_SIZE, decode_content=False):
                bar.update(target.write(block))
                if size and target.tell() > size:
                    raise requests.RequestException(f"it sends more than {size:,} bytes")


def _explain_cause(error: BaseException) -> str:
    """Returns the reason for a network error on one line: that of its root cause."""
    while cause := error.__cause__ or (not error.__suppress_context__ and error.__context__):
        error = cause
    # The text may come from an untrusted server.
    return "".join(filter(str.isprintable, explain(error)))[:200]


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
            for path in sorted(aside.rglob("*")):
                target = folder / path.relative_to(aside)
                if path.is_dir() and not path.is_symlink():
                    target.mkdir(exist_ok=True)
                else:
                    path.replace(target)
    except UserError:
        raise
    except Exception as error:  # damaged archives raise all kinds of errors
        if isinstance(error, tarfile.FilterError):
            reason = f"is not safe to unpack: {error}"
        elif getattr(error, "errno", None) is None:
            reason = f"is damaged: {explain(error)}. Delete it and run again."
        else:
            reason = f"could not be unpacked into `{folder}`: {explain(error)}"
        raise UserError(f"`{archive_path}` {reason}") from error
