"""Transfer of one file from one URL, within limits of size, speed and time."""

import re
import threading
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

import requests
from tqdm import tqdm

# Some servers refuse the name that Python's clients give themselves.
_HEADERS = {"User-Agent": "txl_tf", "Accept-Encoding": "identity"}
_TIMEOUT = 30  # seconds, to connect and between two packets
_BLOCK_SIZE = 2**14  # bytes; at the least speed, a block takes a quarter of `_WINDOW`
_LEAST_SPEED = 2**10  # bytes per second, in every `_WINDOW`
_WINDOW = 60  # seconds
_LEAST_AVERAGE = 2**14  # bytes per second from the start, after `_GRACE`
_GRACE = 600  # seconds
_LARGEST = 2**35  # bytes of a file whose size is not published


class TransferError(Exception):
    """The response is not the file, or comes too slowly."""


def transfer(url: str, path: Path, *, size: int | None = None, is_hashed: bool = False) -> None:
    """Writes the body of an HTTP response to a file, exactly as it is sent, with a progress bar.

    The transfer is given up if it brings fewer than 1 KiB/s for a minute, or fewer than 16 KiB/s
    on average after 10 minutes. A file therefore takes at most 10 minutes + its size / 16 KiB/s.
    No more than the expected number of bytes is written.

    Args:
        url: The URL.
        path: The file to write. After an error it exists and is incomplete.
        size: The size that the file must have in bytes, if known.
        is_hashed: Whether the caller compares a known hash. Without that and `size`, the response
            must show by itself where it ends: by Content-Length or by chunked transfer coding.

    Raises:
        TransferError: If the server cannot be reached, is too slow, or does not answer with a
            complete file of the expected size.
        OSError: If the file cannot be written.
    """
    errors: list[Exception] = []
    with (
        path.open("wb") as file,
        tqdm(desc=path.name, unit="B", unit_scale=True, leave=False, disable=None) as bar,
    ):

        def receive() -> None:
            try:
                _receive(url, file, bar, size, is_hashed)
            except Exception as error:  # raised again by the thread that waits
                errors.append(error)

        # A socket's timeout starts again with each packet, so a server that sends a byte now and
        # then would hold a read for days. It holds only this thread, which does not outlive the
        # program, and whose next write fails once the file is closed.
        thread = threading.Thread(target=receive, daemon=True)
        thread.start()
        received = 0
        while True:
            thread.join(_WINDOW)
            if not thread.is_alive():
                break
            received, before = file.tell(), received
            if received - before < _LEAST_SPEED * _WINDOW:
                raise TransferError(
                    f"it is too slow: {received - before:,} bytes in {_WINDOW} seconds"
                )
        if errors:
            raise errors[0]


def _receive(url: str, file: BinaryIO, bar: tqdm, size: int | None, is_hashed: bool) -> None:
    """Does the work of `transfer`, except for the check of each `_WINDOW`."""
    start = time.monotonic()
    with closing(_request(url)) as items:
        expected = _check_response(next(items), size, is_hashed)
        bar.reset(expected)
        limit, received = _LARGEST if expected is None else expected, 0
        for block in items:
            received += len(block)
            if received > limit:
                raise TransferError(f"it sends more than {limit:,} bytes")
            seconds = time.monotonic() - start
            if seconds > _GRACE and received < _LEAST_AVERAGE * seconds:
                raise TransferError(f"it is too slow: {received:,} bytes in {seconds:,.0f} seconds")
            file.write(block)
            bar.update(len(block))
    if expected is not None and received < expected:
        raise TransferError(f"it sent {received:,} bytes instead of {expected:,}")


def _request(url: str) -> Generator[Any, None, None]:
    """Yields the response to a request, then the blocks of its body.

    Raises:
        TransferError: If the network fails.
    """
    try:
        with requests.get(
            url,
            headers=_HEADERS,
            stream=True,
            timeout=_TIMEOUT,
            hooks={"response": _drop_body_of_redirection},
        ) as response:
            yield response
            # Many servers call a .tgz file gzip-encoded, and requests would decompress it.
            response.raw.headers.pop("Content-Encoding", None)
            yield from response.iter_content(_BLOCK_SIZE)
    except (OSError, ValueError) as error:  # ValueError: of malformed headers and URLs
        raise TransferError(_find_cause(error)) from error


def _drop_body_of_redirection(response: requests.Response, **_: Any) -> None:
    # requests would read the whole body into memory.
    if response.is_redirect:
        response.close()


def _check_response(response: requests.Response, size: int | None, is_hashed: bool) -> int | None:
    """Checks status and headers; returns the size that the body must have, `None` if not known.

    Raises:
        TransferError: If the response is not the expected file.
    """
    if response.status_code != requests.codes.ok:
        raise TransferError(f"it answers {response.status_code} {_make_line(str(response.reason))}")
    if response.headers.get("Transfer-Encoding", "").lower().endswith("chunked"):
        return size  # Content-Length does not count then
    stated = response.headers.get("Content-Length")
    if stated is None:
        if size is None and not is_hashed:
            raise TransferError("its response has no length, so it may be incomplete")
        return size
    if not (stated.isascii() and stated.isdigit()):
        raise TransferError(f"its Content-Length is {_make_line(stated)!r}")
    if size is not None and int(stated) != size:
        raise TransferError(f"its file has {int(stated):,} bytes instead of {size:,}")
    if int(stated) > _LARGEST:
        raise TransferError(f"its file has {int(stated):,} bytes, which is more than {_LARGEST:,}")
    return int(stated)


def _find_cause(error: Exception) -> str:
    """Returns the message of the first cause of a network error: one line, without addresses."""
    while True:
        inner = (*error.args, getattr(error, "reason", None), error.__cause__)
        cause = next((item for item in inner if isinstance(item, Exception)), None)
        if cause is None:
            return _make_line(str(error).split(" for url:")[0]) or type(error).__name__
        error = cause


def _make_line(text: str) -> str:
    """Returns the beginning of a server's text as one line without control characters."""
    return " ".join(re.sub(r"[^ -~]+", " ", text[:200]).split())
