import json

import pytest

from txl_tf.errors import UserError
from txl_tf.training.cluster import Cluster

WORKERS = {"worker": ["host-a:2222", "host-b:2223"]}


def write(cluster, **task):
    return json.dumps({"cluster": cluster, "task": task})


def test_a_worker_knows_its_place():
    cluster = Cluster.from_json(write(WORKERS, type="worker", index=1))
    assert cluster.index == 1
    assert cluster.address == "host-b:2223"
    assert cluster.tasks == (("worker", 0), ("worker", 1))


def test_a_chief_comes_before_the_workers():
    jobs = {"worker": ["b:1", "c:1"], "chief": ["a:1"]}
    cluster = Cluster.from_json(write(jobs, type="worker", index=1))
    assert cluster.addresses == ("a:1", "b:1", "c:1")
    assert cluster.index == 2
    assert Cluster.from_json(write(jobs, type="chief", index=0)).index == 0


def test_an_index_may_be_written_as_a_text():
    assert Cluster.from_json(write(WORKERS, type="worker", index="1")).index == 1


@pytest.mark.parametrize("text", ["", '{"environment": "cloud"}', '{"cluster": {}}'])
def test_without_a_cluster_there_is_none(text, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    assert Cluster.from_environment() is None


def test_a_cluster_of_one_process_is_none(monkeypatch):
    text = write({"worker": ["a:1"]}, type="worker", index=0)
    monkeypatch.setenv("TF_CONFIG", text)
    assert Cluster.from_environment() is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{worker: 1}", "`TF_CONFIG` is not valid JSON: .* Received: '{worker: 1}'"),
        ("[" * 100_000, "`TF_CONFIG` is not valid JSON: maximum recursion depth"),
        ('{"cluster": ["a:1"]}', "must name lists of host:port by job"),
        (write({"worker": "a:1"}, type="worker", index=0), "must name lists of host:port"),
        (write({"worker": ["a:99999", "b:1"]}, type="worker", index=0), "must name lists of host"),
        (write({"worker": ["a:1"], "ps": ["b:1"]}, type="worker", index=0), "jobs chief and wor"),
        (write({"chief": ["a:1", "b:1"]}, type="chief", index=0), "may only name one chief"),
        (write({"worker": ["a:1", "a:1"]}, type="worker", index=0), "names an address twice"),
        (json.dumps({"cluster": WORKERS, "task": {"type": "worker"}}), "must name this process"),
        (
            write(WORKERS, type="worker", index=2),
            r"a task that is not in its cluster \(worker 0, worker 1\). Received: .*\"index\": 2",
        ),
        (write(WORKERS, type="worker", index=None), "a task that is not in its cluster"),
    ],
)
def test_what_cannot_be_used_is_said(text, message):
    with pytest.raises(UserError, match=message):
        Cluster.from_json(text)
