"""A rendezvous of the processes of a run before TensorFlow joins them.

`MultiWorkerMirroredStrategy` waits without a time limit, names nobody, and lets no Python code run
meanwhile. So the other processes first connect to the chief, at the address that TensorFlow will
use; each sends a line with its index, and the chief answers when all have come.
"""

import contextlib
import math
import socket
import time

from txl_tf.errors import UserError, explain, explain_errors
from txl_tf.training.cluster import Cluster

_PAUSE = 0.5  # seconds between two attempts to connect
_LINE_SECONDS = 10.0  # for the line of a process that has connected
_START = b"start\n"


def wait_for_processes(cluster: Cluster, seconds: float) -> None:
    """Waits until all processes of a run have started.

    Args:
        cluster: The processes.
        seconds: The time limit, which may be infinite.

    Raises:
        UserError: If processes are still missing at the time limit (they are named), or the chief
            cannot listen at its address.
    """
    wait = _wait_as_chief if cluster.index == 0 else _wait_for_chief
    reason = wait(cluster, time.monotonic() + seconds)
    if reason:
        raise UserError(f"{reason}: gave up after {seconds / 60:.3g} minutes")


def _wait_as_chief(cluster: Cluster, end: float) -> str:
    """Accepts the other processes and starts them; returns which did not come in time."""
    connections: dict[int, socket.socket] = {}
    others = range(1, len(cluster.tasks))
    with contextlib.ExitStack() as stack:
        fault = f"the processes of the run cannot be joined at {cluster.address}"
        with explain_errors(fault, OSError):
            port = int(cluster.address.rpartition(":")[2])
            server = stack.enter_context(socket.create_server(("", port)))
        while missing := [index for index in others if index not in connections]:
            if time.monotonic() >= end:
                names = ", ".join(map(cluster.name, missing))
                return f"no connection from {names}"
            server.settimeout(_limit(end))
            with contextlib.suppress(TimeoutError):
                connection = stack.enter_context(server.accept()[0])
                connection.settimeout(min(_LINE_SECONDS, _limit(end) or _LINE_SECONDS))
                with contextlib.suppress(OSError, ValueError):  # not a process of the run
                    index = int(connection.makefile("rb").readline(20))
                    connections[index] = connection  # in place of one that has ended
        server.close()  # TensorFlow will listen at this port
        for connection in connections.values():
            with contextlib.suppress(OSError):  # TensorFlow names a process that has ended
                connection.sendall(_START)
    return ""


def _wait_for_chief(cluster: Cluster, end: float) -> str:
    """Connects to the chief, as often as needed; returns why that failed."""
    host, _, port = cluster.addresses[0].rpartition(":")
    reason = "no time"
    while time.monotonic() < end:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _limit(end)) as connection:
                connection.sendall(f"{cluster.index}\n".encode())
                if connection.makefile("rb").readline(20) == _START:
                    return ""
                reason = "it stopped waiting"
        except OSError as error:
            reason = explain(error)
        time.sleep(_PAUSE)
    return f"no answer from {cluster.name(0)} ({reason})"


def _limit(end: float) -> float | None:
    """Returns the seconds that are left, for a socket; `None` for no limit."""
    return None if math.isinf(end) else max(end - time.monotonic(), 0.01)
