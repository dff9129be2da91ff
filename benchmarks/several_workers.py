"""Runs programs of the repository, if needed as several processes of one training run."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from txl_tf.errors import UserError

ROOT = Path(__file__).parents[1]


def run_python(*arguments: object, **environment: str) -> str:
    """Runs a program of the repository and returns what it prints.

    Raises:
        UserError: If it fails.
    """
    command = [sys.executable, *map(str, arguments)]
    variables = os.environ | environment
    done = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UserError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    return done.stdout


def find_addresses(count: int) -> list[str]:
    """Returns free addresses on this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


def make_environments(count: int) -> list[dict[str, str]]:
    """Returns the environment variables for `count` processes of one run on this machine."""
    cluster = {"worker": find_addresses(count)}
    tasks = [{"type": "worker", "index": index} for index in range(count)]
    return [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks]


def start_workers(commands: list[list[str]], logs: list[Path]) -> list[subprocess.Popen]:
    """Starts a process of the run for each command; its log receives all that it prints."""
    processes = []
    environments = make_environments(len(logs))  # a single process is not a cluster
    for command, log, environment in zip(commands, logs, environments, strict=True):
        with log.open("w") as output:
            processes.append(
                subprocess.Popen(
                    command,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=os.environ | environment,
                )
            )
    return processes
