"""The processes of a run on several hosts, listed in TF_CONFIG, which many schedulers set."""

import json
import os
from dataclasses import dataclass

from txl_tf.errors import UserError

JOBS = ("chief", "worker")


@dataclass(frozen=True)
class Cluster:
    """The processes of a run, the first of which is the chief, and the index of this process."""

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
        UserError: If it is invalid or does not list this process.
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
    """Returns whether this process is the first one in TF_CONFIG, or the only one of the run."""
    cluster = read_cluster()
    return cluster is None or cluster.index == 0
