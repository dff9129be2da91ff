"""The processes of a run on several hosts, named by the environment variable TF_CONFIG."""

import json
import os
import re
from dataclasses import dataclass
from typing import Any, Self

from txl_tf.errors import UserError

VARIABLE = "TF_CONFIG"
JOBS = ("chief", "worker")
CONNECT_MINUTES = 10.0  # default time to wait for the other processes


@dataclass(frozen=True)
class Cluster:
    """The processes of a run on several hosts.

    Args:
        tasks: The job and the number of each process, `("worker", 0)`; the first is the chief.
        addresses: The `host:port` of each process.
        index: The index of this process.
    """

    tasks: tuple[tuple[str, int], ...]
    addresses: tuple[str, ...]
    index: int

    @property
    def address(self) -> str:
        """The `host:port` of this process."""
        return self.addresses[self.index]

    def name(self, index: int) -> str:
        """Returns the name of a process for messages: "worker 1 (host-b:2222)"."""
        job, number = self.tasks[index]
        return f"{job} {number} ({self.addresses[index]})"

    @classmethod
    def from_environment(cls) -> Self | None:
        """Reads TF_CONFIG; returns `None` if it is not set or names fewer than 2 processes.

        Raises:
            UserError: If it is not valid or does not name this process.
        """
        text = os.environ.get(VARIABLE, "")
        cluster = cls.from_json(text) if text else None
        return cluster if cluster and len(cluster.tasks) > 1 else None

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """Reads the text of TF_CONFIG; returns `None` if it names no cluster.

        Args:
            text: `{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker",
                "index": 0}}`; the cluster may also have a `chief`.

        Raises:
            UserError: If it is not valid or does not name this process.
        """
        try:
            content = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise UserError(
                f"`{VARIABLE}` is not valid JSON: {error}. Received: {text!r}"
            ) from error
        _check(isinstance(content, dict), "must be an object", content)
        if not content.get("cluster"):
            return None
        jobs, task = content["cluster"], content.get("task")
        _check(
            isinstance(jobs, dict) and all(map(_is_list_of_addresses, jobs.values())),
            "must name lists of host:port by job in `cluster`",
            jobs,
        )
        _check(set(jobs) <= set(JOBS), f"may only name the jobs {' and '.join(JOBS)}", list(jobs))
        _check(len(jobs.get("chief", ())) <= 1, "may only name one chief", jobs)
        tasks = tuple((job, index) for job in JOBS for index in range(len(jobs.get(job, ()))))
        addresses = tuple(address for job in JOBS for address in jobs.get(job, ()))
        _check(len(set(addresses)) == len(addresses), "names an address twice", addresses)
        _check(
            isinstance(task, dict) and {"type", "index"} <= set(task),
            'must name this process, as in `"task": {"type": "worker", "index": 0}`',
            task,
        )
        try:  # some launchers write the index as a string
            me = (task["type"], int(task["index"]))
        except (TypeError, ValueError):
            me = (task["type"], task["index"])
        known = ", ".join(f"{job} {index}" for job, index in tasks)
        _check(me in tasks, f"names a task that is not in its cluster ({known})", task)
        return cls(tasks, addresses, tasks.index(me))


def _is_list_of_addresses(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_address, value))


def _is_address(value: Any) -> bool:
    match = re.fullmatch(r".+:(\d{1,5})", value) if isinstance(value, str) else None
    return match is not None and 1 <= int(match[1]) <= 65535


def _check(holds: bool, rule: str, received: Any) -> None:
    if not holds:
        raise UserError(f"`{VARIABLE}` {rule}. Received: {json.dumps(received)}")


def is_chief() -> bool:
    """Returns whether this process is the first one in TF_CONFIG, or the only one."""
    cluster = Cluster.from_environment()
    return cluster is None or cluster.index == 0
