"""Processes of a run that wait for each other; here they are threads, or processes of their own."""

import signal
import socket
import subprocess
import sys
import threading

import pytest
from tables import slow_after

from benchmarks.several_workers import find_addresses
from txl_tf.errors import UserError
from txl_tf.training.cluster import Cluster
from txl_tf.training.rendezvous import wait_for_processes

MINUTE = 60.0


def make_clusters(count):
    """Returns what each of some processes on this machine knows of all."""
    addresses = tuple(find_addresses(count))
    tasks = tuple(("worker", index) for index in range(count))
    return [Cluster(tasks, addresses, index) for index in range(count)]


class Waiting(threading.Thread):
    """A process that waits."""

    def __init__(self, cluster, seconds=MINUTE):
        super().__init__(daemon=True)
        self.cluster, self.seconds, self.outcome = cluster, seconds, "waits"
        self.start()

    def run(self):
        try:
            wait_for_processes(self.cluster, self.seconds)
        except UserError as error:
            self.outcome = str(error)
        else:
            self.outcome = "goes on"

    def finish(self):
        self.join(timeout=MINUTE)
        return self.outcome


def test_all_go_on_when_the_last_has_begun():
    clusters = make_clusters(3)
    first = [Waiting(clusters[index]) for index in (2, 1)]
    first[0].join(timeout=1.0)
    assert [each.outcome for each in first] == ["waits"] * 2
    assert [each.finish() for each in (*first, Waiting(clusters[0]))] == ["goes on"] * 3


def test_the_port_of_the_chief_is_free_for_tensorflow_afterwards():
    clusters = make_clusters(2)
    for each in [Waiting(cluster) for cluster in clusters]:
        each.finish()
    port = int(clusters[0].address.rpartition(":")[2])
    socket.create_server(("127.0.0.1", port)).close()


def test_the_chief_names_those_that_did_not_come():
    clusters = make_clusters(4)
    worker = Waiting(clusters[2])
    with pytest.raises(UserError, match="gave up after") as error:
        wait_for_processes(clusters[0], 2.0)
    names = ", ".join(f"worker {index} ({clusters[index].address})" for index in (1, 3))
    assert str(error.value).startswith(f"no connection from {names}: ")
    assert worker.outcome == "waits"  # for a chief that starts again


def test_others_name_a_chief_that_does_not_answer():
    clusters = make_clusters(2)
    with pytest.raises(UserError, match=r"^no answer from worker 0 \(.*\(Connection refused\): "):
        wait_for_processes(clusters[1], 1.0)


def test_what_is_no_process_of_the_run_is_left_aside():
    clusters = make_clusters(2)
    chief = Waiting(clusters[0])
    host, _, port = clusters[0].address.rpartition(":")
    chief.join(timeout=0.5)
    for line in (b"GET / HTTP/1.1\r\n\r\n", b"a\n", b""):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(line)
    assert Waiting(clusters[1]).finish() == "goes on"
    assert chief.finish() == "goes on"


def test_a_port_in_use_is_told():
    clusters = make_clusters(2)
    host, _, port = clusters[0].address.rpartition(":")
    with (
        socket.create_server(("", int(port))),
        pytest.raises(UserError, match=f"joined at {host}:{port}: Address already in use"),
    ):
        wait_for_processes(clusters[0], 1.0)


@pytest.mark.parametrize("index", slow_after(1, [0, 1]))
def test_signals_are_obeyed_while_a_process_waits(index):
    number = signal.SIGTERM
    code = (
        "from txl_tf.training.cluster import Cluster\n"
        "from txl_tf.training.rendezvous import wait_for_processes\n"
        "from txl_tf.training.signals import stop_at_once\n"
        "with stop_at_once('it waited'):\n"
        "    print('waits', flush=True)\n"
        f"    wait_for_processes({make_clusters(2)[index]!r}, {MINUTE})"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdout.readline() == "waits\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=MINUTE / 2)
    name = signal.Signals(number).name
    assert errors.endswith(f"StoppedError: stopped by {name} while it waited\n")
