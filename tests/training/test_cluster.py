"""The processes of a run, and how they wait for each other; here they are threads."""

import json
import socket
import threading

import pytest

from benchmarks.several_workers import find_addresses
from txl_tf.errors import UserError
from txl_tf.training.cluster import Cluster, read_cluster, wait_for_processes

WORKERS = {"worker": ["host-a:2222", "host-b:2223"]}
MINUTE = 60.0


def write(cluster, **task):
    return json.dumps({"cluster": cluster, "task": task})


@pytest.fixture
def read(monkeypatch):
    """Returns a function that reads the text of TF_CONFIG."""

    def read(text):
        monkeypatch.setenv("TF_CONFIG", text)
        return read_cluster()

    return read


@pytest.mark.parametrize("index", [1, "1"])
def test_a_worker_knows_its_place(index, read):
    cluster = read(write(WORKERS, type="worker", index=index))
    assert cluster.index == 1
    assert cluster.tasks == (("worker", 0), ("worker", 1))
    assert cluster.name(1) == "worker 1 (host-b:2223)"


def test_a_chief_comes_before_the_workers(read):
    jobs = {"worker": ["b:1", "c:1"], "chief": ["a:1"]}
    cluster = read(write(jobs, type="worker", index=1))
    assert cluster.addresses == ("a:1", "b:1", "c:1")
    assert cluster.index == 2
    assert read(write(jobs, type="chief", index=0)).index == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"environment": "cloud"}',
        '{"cluster": {}}',
        write({"worker": ["a:1"]}, type="worker", index=0),
    ],
)
def test_without_other_processes_there_is_no_cluster(text, read):
    assert read(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{worker: 1}", "Expecting property name"),
        ("[" * 100_000, "maximum recursion depth"),
        ('["a:1"]', "has no attribute"),
        (write({"worker": "a:1"}, type="worker", index=0), "'a' is not host:port"),
        (write({"worker": ["a:99999", "b:1"]}, type="worker", index=0), "'a:99999' is not"),
        (write({"worker": ["a..b:1", "b:1"]}, type="worker", index=0), "idna"),
        (write({"worker": ["a:-5", "b:1"]}, type="worker", index=0), "'a:-5' is not host:port"),
        (write({"worker": ["a:1"], "ps": ["b:1"]}, type="worker", index=0), "jobs chief and wor"),
        (json.dumps({"cluster": WORKERS, "task": {"type": "worker"}}), "index"),
        (write(WORKERS, type="worker", index=2), "is not in the cluster"),
        (write(WORKERS, type="worker", index=None), "int"),
    ],
)
def test_an_invalid_cluster_is_one_line(text, reason, read):
    with pytest.raises(UserError, match=f"`TF_CONFIG` must name the processes .*{reason}"):
        read(text)


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
            self.outcome = "starts"

    def finish(self):
        self.join(timeout=MINUTE)
        return self.outcome


@pytest.mark.parametrize("last", [0, 1])
def test_all_start_when_the_last_has_begun_and_their_ports_are_free(last):
    clusters = make_clusters(3)
    first = [Waiting(cluster) for cluster in clusters if cluster.index != last]
    first[0].join(timeout=1.0)
    assert [each.outcome for each in first] == ["waits"] * 2
    assert [each.finish() for each in (*first, Waiting(clusters[last]))] == ["starts"] * 3
    for address in clusters[0].addresses:
        socket.create_server(("", int(address.rpartition(":")[2]))).close()


def test_missing_processes_are_named():
    clusters = make_clusters(4)
    worker = Waiting(clusters[2])
    with pytest.raises(UserError, match="gave up after") as error:
        wait_for_processes(clusters[0], 1.0)
    names = ", ".join(map(clusters[0].name, (1, 3)))
    assert str(error.value) == f"no answer from {names}: gave up after 0.0167 minutes"
    assert worker.outcome == "waits"  # for a chief that starts again


def test_a_missing_chief_is_named():
    with pytest.raises(UserError, match=r"^no answer from worker 0 \(.*: gave up after"):
        wait_for_processes(make_clusters(2)[1], 0.5)


def test_other_connections_start_nothing():
    clusters = make_clusters(2)
    worker = Waiting(clusters[1])
    host, _, port = clusters[1].addresses[1].rpartition(":")
    worker.join(timeout=0.5)
    for line in (b"GET / HTTP/1.1\r\n\r\n", b""):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(line)
    worker.join(timeout=0.5)
    assert worker.outcome == "waits"
    assert [Waiting(clusters[0]).finish(), worker.finish()] == ["starts"] * 2


def test_a_port_in_use_is_told():
    cluster = make_clusters(2)[1]
    address = cluster.addresses[1]
    with (
        socket.create_server(("", int(address.rpartition(":")[2]))),
        pytest.raises(UserError, match=f"joined at {address}: Address already in use"),
    ):
        wait_for_processes(cluster, 1.0)
