"""A rendezvous of the processes of a run before tensorflow joins them.

`MultiWorkerMirroredStrategy` waits without a time limit. While it waits, no Python code runs, and
it takes over SIGTERM. The processes therefore meet here first, in plain Python: the others connect
to the chief, at the address that tensorflow will use, and continue once all have connected.

They exchange lines of JSON. A process sends its index, `{"index": 1}`. The chief answers every
second with the indices that are still missing, `{"missing": [2]}`; an empty list ends the wait.
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
_BEAT = 1.0  # seconds between two lines from the chief
_SILENCE = 10.0  # seconds without a line until a connection counts as lost
_LONGEST_LINE = 100_000  # bytes

# Waits for the end of its input, and kills the process that started it if it does not come in time.
_WATCHDOG = """
import os, select, sys
pid, seconds, number, line = sys.argv[1:]
if not select.select([sys.stdin], [], [], float(seconds))[0]:
    print(line, file=sys.stderr, flush=True)
    os.kill(int(pid), int(number))
"""


class _LateError(Exception):
    """The time limit has passed."""


def wait_for_processes(cluster: Cluster, seconds: float) -> None:
    """Waits until all processes of a run have started.

    Signals are handled meanwhile, and an exception of their handlers ends the wait.

    Args:
        cluster: The processes.
        seconds: The time limit, which may be infinite.

    Raises:
        UserError: If processes are still missing at the time limit (they are named), or the chief
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

    # In a thread, since signals do not interrupt the resolution of a host name.
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
    """Listens until all other processes are connected at the same time, and releases them.

    Raises:
        _LateError: If the time limit has passed.
        UserError: If the port cannot be used.
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
                server.close()  # tensorflow will listen at this port
            if not missing or time.monotonic() >= next_beat:
                for connection in indices:
                    with contextlib.suppress(OSError):  # a lost connection is found when it is read
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
                else:  # closed, or not a process of the run
                    selector.unregister(connection)
                    connection.close()
                    indices.pop(connection, None)


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 may be disabled
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _close_all(selector: selectors.BaseSelector) -> None:
    for key in list(selector.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]


def _read_index(connection: socket.socket) -> int | None:
    """Returns the index that a process sends; `None` if it sends anything else or nothing."""
    try:
        return json.loads(connection.recv(_LONGEST_LINE))["index"]
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _wait_for_chief(cluster: Cluster, end: float, is_given_up: threading.Event) -> None:
    """Connects to the chief, as often as needed, until it ends the wait.

    Raises:
        _LateError: If the time limit has passed.
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
                        reason = f"{chief} is still waiting for {_name(cluster, missing)}"
                    if time.monotonic() >= end or is_given_up.is_set():
                        break
        except (OSError, ValueError, TypeError, KeyError) as error:
            reason = f"no answer from {chief} ({getattr(error, 'strerror', None) or error})"
        is_given_up.wait(min(_PAUSE, max(end - time.monotonic(), 0)))


def _read_missing(connection: socket.socket) -> Iterator[list[int]]:
    """Yields the indices in each line from the chief until it closes the connection."""
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
    """Ends this process if the `with` block takes too long, even if no Python code can run.

    A watchdog process sends SIGKILL.

    Args:
        seconds: The time limit, which may be infinite.
        line: A line that is printed to the standard error first.
    """
    if seconds == float("inf"):
        yield
        return
    command = [sys.executable, "-I", "-S", "-c", _WATCHDOG]
    arguments = [str(os.getpid()), str(seconds), str(int(signal.SIGKILL)), line]
    # In its own session, which does not receive Ctrl-C.
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
