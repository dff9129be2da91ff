"""The processes of a run, as TF_CONFIG names them."""

import json

import pytest

from txl_tf.errors import UserError
from txl_tf.training.cluster import read_cluster

WORKERS = {"worker": ["host-a:2222", "host-b:2223"]}


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
