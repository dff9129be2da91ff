"""Transfer of one file from one URL, within limits of size, speed and time."""

import queue
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
from tqdm import tqdm

# Some servers turn away the name that Python's clients give themselves.
_HEADERS = {"User-Agent": "txl_tf", "Accept-Encoding": "identity"}
_TIMEOUT = 30  # seconds, to connect and between two packets
_BLOCK_SIZE = 2**14  # bytes; at the least speed, a block takes a quarter of `_WINDOW`
_QUEUED_BLOCKS = 64
_LEAST_SPEED = 2**10  # bytes per second, in every `_WINDOW`
_WINDOW = 60  # seconds
_LEAST_AVERAGE = 2**14  # bytes per second from the start, after `_GRACE`
_GRACE = 600  # seconds
_LARGEST = 2**35  # bytes of a file whose size is not published
_NETWORK_ERRORS = (OSError, ValueError)  # ValueError: senseless headers and addresses


class TransferError(Exception):
    """An answer that is not the file, or that comes too slowly."""


def transfer(url: str, path: Path, *, size: int | None = None, is_hashed: bool = False) -> None:
    """Writes the body of an HTTP answer to a file, as it is sent, with a progress bar.

    The connection is given up where it brings fewer than 1 KiB/s for a minute, or fewer than
    16 KiB/s on average after 10 minutes, so a file takes at most 10 minutes + its size / 16 KiB/s.
    No more than the expected bytes are written.

    Args:
        url: The address.
        path: The file to write. After an error it is there, and incomplete.
        size: The bytes that the file must have, where known.
        is_hashed: Whether the caller compares a known hash. Without that and `size`, an answer
            must show by itself where it ends: by Content-Length or by chunked transfer coding.

    Raises:
        TransferError: If the server cannot be reached, is too slow, or does not answer with a whole
            file of the expected size.
        OSError: If the file cannot be written.
    """
    stop = threading.Event()
    items = _read_ahead(_request(url), stop)
    with (
        path.open("wb") as file,
        tqdm(desc=path.name, unit="B", unit_scale=True, leave=False, disable=None) as bar,
    ):
        try:
            expected = _check_answer(next(items), size, is_hashed)
            bar.reset(expected)
            limit, received = _LARGEST if expected is None else expected, 0
            for block in items:
                received += len(block)
                if received > limit:
                    raise TransferError(f"it sends more than {limit:,} bytes")
                file.write(block)
                bar.update(len(block))
        finally:
            stop.set()
    if expected is not None and received < expected:
        raise TransferError(f"it sent {received:,} bytes instead of {expected:,}")


def _request(url: str) -> Iterator[Any]:
    """Yields the response to a request, then the blocks of its body."""
    with requests.get(
        url,
        headers=_HEADERS,
        stream=True,
        timeout=_TIMEOUT,
        hooks={"response": _drop_body_of_redirection},
    ) as response:
        yield response
        # Many a server calls a .tgz file gzip-encoded: requests would write it uncompressed.
        response.raw.headers.pop("Content-Encoding", None)
        yield from response.iter_content(_BLOCK_SIZE)


def _drop_body_of_redirection(response: requests.Response, **_: Any) -> None:
    # requests would read the whole body into memory.
    if response.is_redirect:
        response.close()


def _check_answer(response: requests.Response, size: int | None, is_hashed: bool) -> int | None:
    """Checks the status and the headers of an answer.

    Args:
        response: The answer, its body not yet read.
        size: As `transfer`'s.
        is_hashed: As `transfer`'s.

    Returns:
        The bytes that its body must have; `None` if they are not known.

    Raises:
        TransferError: If it is not the expected file.
    """
    if response.status_code != requests.codes.ok:
        raise TransferError(f"it answers {response.status_code} {_make_line(str(response.reason))}")
    if response.headers.get("Transfer-Encoding", "").lower().endswith("chunked"):
        return size  # Content-Length does not count then
    stated = response.headers.get("Content-Length")
    if stated is None:
        if size is None and not is_hashed:
            raise TransferError("its answer does not say how long it is: it may be incomplete")
        return size
    if not (stated.isascii() and stated.isdigit()):
        raise TransferError(f"its Content-Length is {_make_line(stated)!r}")
    if size is not None and int(stated) != size:
        raise TransferError(f"its file has {int(stated):,} bytes instead of {size:,}")
    if int(stated) > _LARGEST:
        raise TransferError(f"its file has {int(stated):,} bytes, which is more than {_LARGEST:,}")
    return int(stated)


def _read_ahead(items: Iterator[Any], stop: threading.Event) -> Iterator[Any]:
    """Yields what another thread reads from a connection, and watches its speed.

    Timeouts of sockets count from the last packet: a server that sends a byte now and then would
    hold a read for days. Here it holds the thread only, which does not outlive the program.

    Args:
        items: What the thread iterates over: a response, then the blocks of its body.
        stop: Ends the thread when it is set.

    Raises:
        TransferError: If the network fails or is too slow.
    """
    results: queue.Queue[Any] = queue.Queue(_QUEUED_BLOCKS)
    threading.Thread(target=_fill, args=(results, items, stop), daemon=True).start()
    start = window_start = time.monotonic()
    received = window_received = 0
    while True:
        try:
            item = results.get(timeout=max(0, window_start + _WINDOW - time.monotonic()))
        except queue.Empty:
            item = b""
        if item is None:
            return
        if isinstance(item, _NETWORK_ERRORS):
            raise TransferError(_find_cause(item)) from item
        if isinstance(item, Exception):
            raise item
        if isinstance(item, bytes):
            received += len(item)
            window_received += len(item)
        now = time.monotonic()
        if now - window_start >= _WINDOW:
            if window_received < _LEAST_SPEED * _WINDOW:
                raise TransferError(
                    f"it is too slow: {window_received:,} bytes in {_WINDOW} seconds"
                )
            window_start, window_received = now, 0
        if now - start > _GRACE and received < _LEAST_AVERAGE * (now - start):
            raise TransferError(f"it is too slow: {received:,} bytes in {now - start:,.0f} seconds")
        if item != b"":
            yield item


def _fill(results: queue.Queue[Any], items: Iterator[Any], stop: threading.Event) -> None:
    """Puts items into a queue, then the error that ended them, or `None`."""
    end = None
    try:
        for item in items:
            if not _put(results, item, stop):
                return
    except Exception as error:  # raised again by the thread that reads the queue
        end = error
    _put(results, end, stop)


def _put(results: queue.Queue[Any], item: Any, stop: threading.Event) -> bool:
    """Puts an item into a queue as soon as it has room; returns whether it could before `stop`."""
    while not stop.is_set():
        try:
            results.put(item, timeout=1)
        except queue.Full:
            continue
        return True
    return False


def _find_cause(error: Exception) -> str:
    """Returns the message at the bottom of an error of the network: one line, no addresses."""
    while True:
        inner = (*error.args, getattr(error, "reason", None), error.__cause__)
        cause = next((item for item in inner if isinstance(item, Exception)), None)
        if cause is None:
            return _make_line(str(error).split(" for url:")[0]) or type(error).__name__
        error = cause


def _make_line(text: str) -> str:
    """Returns the start of a text that a server may have written, without control characters."""
    return " ".join(re.sub(r"[^ -~]+", " ", text[:200]).split())
