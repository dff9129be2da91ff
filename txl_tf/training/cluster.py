"""The processes of a run on several hosts, named by TF_CONFIG, which many schedulers set."""

import contextlib
import json
import os
import socket
import time
from dataclasses import dataclass

from txl_tf.errors import UserError, explain_errors

JOBS = ("chief", "worker")
CONNECT_MINUTES = 10.0  # default time to wait for the other processes
_PAUSE = 0.5  # seconds between two attempts to connect
_START = b"start\n"


@dataclass(frozen=True)
class Cluster:
    """The processes of a run, of which the first is the chief, and the index of this one."""

    tasks: tuple[tuple[str, int], ...]
    addresses: tuple[str, ...]
    index: int

    def name(self, index: int) -> str:
        """Returns the name of a process for messages: "worker 1 (host-b:2222)"."""
        job, number = self.tasks[index]
        return f"{job} {number} ({self.addresses[index]})"


def read_cluster() -> Cluster | None:
    """Reads TF_CONFIG; returns `None` if it is not set or names fewer than 2 processes.

    Raises:
        UserError: If it is not valid or does not name this process.
    """
    text = os.environ.get("TF_CONFIG", "")
    try:
        content = json.loads(text or "{}")
        jobs = dict(content.get("cluster") or {})
        tasks = tuple((job, index) for job in JOBS for index in range(len(jobs.get(job, ()))))
        addresses = tuple(address for job in JOBS for address in jobs.get(job, ()))
        if not jobs or (len(tasks) == 1 and set(jobs) <= set(JOBS)):
            return None
        if not set(jobs) <= set(JOBS):
            raise ValueError(f"it may only name the jobs {' and '.join(JOBS)}")
        for address in addresses:
            host, _, port = address.rpartition(":")
            host.encode("idna")
            if not host or not 0 < int(port) < 2**16:
                raise ValueError(f"{address!r} is not host:port")
        me = (content["task"]["type"], int(content["task"]["index"]))
        if me not in tasks:
            raise ValueError(f"the task {me} is not in the cluster")
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise UserError(
            "`TF_CONFIG` must name the processes as lists of host:port, and this one: "
            '{"cluster": {"worker": [...]}, "task": {"type": "worker", "index": 0}}. '
            f"Received: {text!r} ({error})"
        ) from error
    return Cluster(tasks, addresses, tasks.index(me))


def is_chief() -> bool:
    """Returns whether this process is the first one in TF_CONFIG, or the only one."""
    cluster = read_cluster()
    return cluster is None or cluster.index == 0


def wait_for_processes(cluster: Cluster, seconds: float | None) -> None:
    """Waits until all processes of a run have started; `None` is for no limit.

    `MultiWorkerMirroredStrategy` waits without a limit, names nobody, and lets no Python code run
    meanwhile. So the other processes first listen at their addresses, until the chief has reached
    all of them.

    Raises:
        UserError: If processes are missing at the time limit (they are named), or this process
            cannot listen at its address.
    """
    wait = _wait_for_chief if cluster.index else _wait_for_others
    missing = wait(cluster, None if seconds is None else time.monotonic() + seconds)
    if missing and seconds is not None:
        names = ", ".join(map(cluster.name, missing))
        raise UserError(f"no answer from {names}: gave up after {seconds / 60:.3g} minutes")


def _wait_for_others(cluster: Cluster, end: float | None) -> list[int]:
    """Connects to all others, then starts them; returns those that cannot be reached in time."""
    missing = list(range(1, len(cluster.tasks)))
    connections = []
    with contextlib.ExitStack() as stack:
        while missing:
            for index in list(missing):
                host, _, port = cluster.addresses[index].rpartition(":")
                with contextlib.suppress(OSError):
                    connection = socket.create_connection((host.strip("[]"), int(port)), 10.0)
                    connections.append(stack.enter_context(connection))
                    missing.remove(index)
            if missing and end is not None and time.monotonic() > end:
                return missing
            time.sleep(_PAUSE if missing else 0)
        for connection in connections:
            with contextlib.suppress(OSError):  # TensorFlow names a process that has ended
                connection.sendall(_START)
    return []


def _wait_for_chief(cluster: Cluster, end: float | None) -> list[int]:
    """Listens until the chief says to start; returns the chief if it does not in time."""
    address = cluster.addresses[cluster.index]
    with explain_errors(f"the processes of the run cannot be joined at {address}", OSError):
        server = socket.create_server(("", int(address.rpartition(":")[2])))
    with server, contextlib.suppress(TimeoutError):
        while True:
            server.settimeout(_count_seconds(end))
            connection, _ = server.accept()
            with connection, contextlib.suppress(ConnectionError):
                connection.settimeout(_count_seconds(end))
                if connection.makefile("rb").readline(20) == _START:
                    return []
    return [0]


def _count_seconds(end: float | None) -> float | None:
    """Returns the time that is left, for a socket; `None` for no limit."""
    return None if end is None else max(end - time.monotonic(), 0.01)
