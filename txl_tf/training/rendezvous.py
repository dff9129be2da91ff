"""The processes of a run wait for each other, before tensorflow does.

`MultiWorkerMirroredStrategy` waits without a limit. While it does, it lets no Python code run, and
it takes SIGTERM for itself. So the processes meet here first, in plain Python: all others connect
to the chief, at the address that tensorflow will use, and go on when the chief has heard of all.

They send lines of JSON. A process sends its index, `{"index": 1}`. The chief answers every second
with the indices that it still waits for, `{"missing": [2]}`; an empty list means: go on.
"""

import contextlib
import json
import os
import queue
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator

from txl_tf.errors import UserError, explain_errors
from txl_tf.training.cluster import Cluster

_PAUSE = 0.5  # seconds between two attempts to connect
_BEAT = 1.0  # seconds between two lines of the chief
_SILENCE = 10.0  # seconds without a line after which a connection counts as lost
_LONGEST_LINE = 100_000  # bytes

# Waits for the end of its input, and ends the process that started it if that does not come.
_WATCHDOG = """
import os, select, sys
pid, seconds, number, line = sys.argv[1:]
if not select.select([sys.stdin], [], [], float(seconds))[0]:
    print(line, file=sys.stderr, flush=True)
    os.kill(int(pid), int(number))
"""


class _LateError(Exception):
    """The time is over."""


def wait_for_processes(cluster: Cluster, seconds: float) -> None:
    """Waits until all processes of a run have begun.

    Signals are handled meanwhile; what their handlers raise ends the wait.

    Args:
        cluster: the processes.
        seconds: the longest wait; may be infinite.

    Raises:
        UserError: the time is over, and the processes that are missing are named; or the chief
            cannot listen at its address.
    """
    wait = _wait_as_chief if cluster.index == 0 else _wait_for_chief
    outcome: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    is_given_up = threading.Event()

    def run() -> None:
        try:
            wait(cluster, time.monotonic() + seconds, is_given_up)
        except Exception as error:
            outcome.put(error)  # raised below
        else:
            outcome.put(None)

    # In a thread, since no signal interrupts the search for a host's address.
    threading.Thread(target=run, daemon=True).start()
    try:
        error = outcome.get()
    finally:
        is_given_up.set()
    if isinstance(error, _LateError):
        raise UserError(f"{error}: gave up after {seconds / 60:.3g} minutes") from error
    if error is not None:
        raise error


def _wait_as_chief(cluster: Cluster, end: float, is_given_up: threading.Event) -> None:
    """Listens until all others are connected at the same time, and sends them on.

    Raises:
        _LateError: the time is over.
        UserError: the port cannot be used.
    """
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        stack.callback(_close_all, selector)
        fault = f"the processes of the run cannot be joined at {cluster.address}"
        with explain_errors(fault, OSError):
            server = _listen(int(cluster.address.rpartition(":")[2]))
        selector.register(server, selectors.EVENT_READ)
        indices: dict[socket.socket, int] = {}
        next_beat = 0.0
        while not is_given_up.is_set():
            missing = sorted(set(range(1, len(cluster.tasks))) - set(indices.values()))
            if not missing:
                server.close()  # tensorflow will listen there
            if not missing or time.monotonic() >= next_beat:
                for connection in indices:
                    with contextlib.suppress(OSError):  # reading it will show that it is lost
                        connection.sendall(_write_line(missing=missing))
                next_beat = time.monotonic() + _BEAT
            if not missing:
                return
            if time.monotonic() >= end:
                raise _LateError(f"no connection from {_name(cluster, missing)}")
            for key, _ in selector.select(timeout=_BEAT / 5):
                if key.fileobj is server:
                    connection, _ = server.accept()
                    connection.settimeout(_SILENCE)
                    selector.register(connection, selectors.EVENT_READ)
                    continue
                connection = key.fileobj  # type: ignore[assignment]
                index = _read_index(connection)
                if index is not None and index in range(1, len(cluster.tasks)):
                    indices[connection] = index
                else:  # it is closed, or not a process of the run
                    selector.unregister(connection)
                    connection.close()
                    indices.pop(connection, None)


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # a machine may have IPv6 switched off
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _close_all(selector: selectors.BaseSelector) -> None:
    for key in list(selector.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]


def _read_index(connection: socket.socket) -> int | None:
    """Returns the index that a process sends; `None` if it sends nothing or something else."""
    try:
        return json.loads(connection.recv(_LONGEST_LINE))["index"]
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _wait_for_chief(cluster: Cluster, end: float, is_given_up: threading.Event) -> None:
    """Connects to the chief, as often as needed, until it says to go on.

    Raises:
        _LateError: the time is over.
    """
    host, _, port = cluster.addresses[0].rpartition(":")
    chief, reason = cluster.name(0), "no time"
    while not is_given_up.is_set():
        left = end - time.monotonic()
        if left <= 0:
            raise _LateError(reason)
        try:
            address = (host.strip("[]"), int(port))
            with socket.create_connection(address, timeout=min(left, _SILENCE)) as connection:
                connection.sendall(_write_line(index=cluster.index))
                reason = f"no answer from {chief}"
                for missing in _read_missing(connection):
                    if not missing:
                        return
                    if missing != [cluster.index]:
                        reason = f"{chief} still waits for {_name(cluster, missing)}"
                    if time.monotonic() >= end or is_given_up.is_set():
                        break
        except (OSError, ValueError, TypeError, KeyError) as error:
            reason = f"no answer from {chief} ({getattr(error, 'strerror', None) or error})"
        is_given_up.wait(min(_PAUSE, max(end - time.monotonic(), 0)))


def _read_missing(connection: socket.socket) -> Iterator[list[int]]:
    """Yields the indices in each line of the chief, until it closes the connection."""
    connection.settimeout(_SILENCE)
    with connection.makefile("rb") as lines:
        while line := lines.readline(_LONGEST_LINE):
            yield json.loads(line)["missing"]


def _write_line(**content: int | list[int]) -> bytes:
    return (json.dumps(content) + "\n").encode()


def _name(cluster: Cluster, indices: Iterable[int]) -> str:
    return ", ".join(cluster.name(index) for index in indices)


@contextlib.contextmanager
def end_when_stuck(seconds: float, line: str) -> Iterator[None]:
    """Ends this process if what is done within takes too long, even if no Python code can run.

    Another process watches, and sends SIGKILL.

    Args:
        seconds: how long it may take; may be infinite.
        line: printed to the standard error before the end.
    """
    if seconds == float("inf"):
        yield
        return
    command = [sys.executable, "-I", "-S", "-c", _WATCHDOG]
    arguments = [str(os.getpid()), str(seconds), str(int(signal.SIGKILL)), line]
    # A session of its own: Ctrl-C is for this process.
    watchdog = subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert watchdog.stdin
    try:
        yield
    finally:
        watchdog.stdin.close()
        watchdog.wait()
