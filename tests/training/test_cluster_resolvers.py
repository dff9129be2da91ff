"""TF_CONFIG from Slurm's variables, from the pods of Kubernetes and from a group of cloud VMs."""

import json
import os
from types import SimpleNamespace

import pytest

from txl_tf.errors import UserError
from txl_tf.training import cluster_resolvers
from txl_tf.training.cluster_resolvers import (
    find_own_index,
    make_gce_lister,
    make_kubernetes_lister,
    set_tf_config,
    wait_for_addresses,
)

PORT = 7_411


# Not `delenv`: of a variable that is not set, it would not undo what the code under test sets.
@pytest.fixture(autouse=True)
def without_tf_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "")


@pytest.fixture
def slurm(monkeypatch):
    """Returns a function that sets the variables of a task of a job step."""

    def set_variables(rank, local, host, *, hosts, per_node, gpus="", on_node="0"):
        variables = {
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local),
            "SLURMD_NODENAME": host,
            "SLURM_STEP_NUM_TASKS": "3",
            "SLURM_STEP_NODELIST": hosts,
            "SLURM_STEP_TASKS_PER_NODE": per_node,
            "CUDA_VISIBLE_DEVICES": gpus,
            "SLURM_GPUS_ON_NODE": on_node,
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("TF_CONFIG", "")  # set by the task before

    return set_variables


def join(source, size=None, seconds=0.0):
    return set_tf_config(source, port=PORT, size=size, seconds=seconds)


def test_each_task_of_slurm_has_an_address_on_its_own_host(slurm):
    """Also where the order of the names is another than Slurm's, by numbers."""
    hosts = ["node2", "node9", "node10"]
    joined = []
    for rank, host in enumerate(hosts):
        slurm(rank, 0, host, hosts="node[2,9-10]", per_node="1(x3)")
        joined.append(join("slurm"))
    assert [cluster.address for cluster in joined] == [f"{host}:{PORT}" for host in hosts]
    assert len({cluster.addresses for cluster in joined}) == 1
    assert json.loads(os.environ["TF_CONFIG"])["task"] == {"type": "worker", "index": 0}


def test_tasks_on_one_host_have_ports_and_gpus_of_their_own(slurm):
    seen = []
    for local in range(2):
        gpus = {"gpus": "3,4,5,7", "on_node": "4"}
        slurm(local, local, "a", hosts="a,b", per_node="2,1", **gpus)
        address = join("slurm").address
        seen.append((address, os.environ["CUDA_VISIBLE_DEVICES"]))
    assert seen == [(f"a:{PORT}", "3,4"), (f"a:{PORT + 1}", "5,7")]


def test_without_slurm_one_line_says_so(monkeypatch):
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    with pytest.raises(UserError, match="could not be had from slurm: SLURM_PROCID not found"):
        join("slurm")


def make_pod(name, host, phase="Running"):
    return SimpleNamespace(
        metadata=SimpleNamespace(name=name), status=SimpleNamespace(phase=phase, host_ip=host)
    )


class Pods:
    """The client of Kubernetes, with lists of pods that it gives one after the other."""

    def __init__(self, *lists):
        self.lists, self.selectors = list(lists), []

    def list_pod_for_all_namespaces(self, label_selector):
        self.selectors.append(label_selector)
        pods = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        return SimpleNamespace(items=pods)


def test_the_pods_with_a_label_are_awaited():
    first, second = make_pod("txl-0", "10.0.0.7"), make_pod("txl-1", "10.0.0.3")
    pods = Pods([], [first], [first, make_pod("txl-1", None, "Pending")], [second, first])
    waits = []
    lister = make_kubernetes_lister("job-name=txl", PORT, pods)
    found = wait_for_addresses(lister, 2, 60.0, sleep=waits.append)
    assert found == [f"10.0.0.7:{PORT}", f"10.0.0.3:{PORT}"]  # by the names of the pods
    assert (len(waits), set(pods.selectors)) == (3, {"job-name=txl"})


def test_another_number_of_pods_is_an_error():
    pods = [make_pod("txl-0", "10.0.0.7"), make_pod("txl-1", None, "Pending")]
    message = r'0 of `cluster_size`=2 .* \(Pod "txl-1" is not running; phase: "Pending"\)'
    with pytest.raises(UserError, match=message):
        wait_for_addresses(make_kubernetes_lister("a=b", PORT, Pods(pods)), 2, 0.0)


class Request:
    def __init__(self, response):
        self.response = response

    def execute(self):
        return self.response


class Compute:
    """Compute Engine's API: instance groups in pages, and instances with addresses."""

    def __init__(self, *pages):
        self.pages = [
            {"items": [{"instance": f"https://host/zones/z/instances/{name}"} for name in page]}
            if page
            else {}
            for page in pages
        ]

    def instanceGroups(self):  # noqa: N802
        return self

    def listInstances(self, *, project, zone, instanceGroup, body, orderBy):  # noqa: N802, N803
        assert (project, zone, instanceGroup) == ("p", "z", "g")
        assert body == {"instanceState": "RUNNING"}
        return Request(self.pages[0])

    def listInstances_next(self, previous_request, previous_response):  # noqa: N802
        place = self.pages.index(previous_request.response) + 1
        return Request(self.pages[place]) if place < len(self.pages) else None

    def instances(self):
        return self

    def get(self, *, project, zone, instance):
        return Request({"networkInterfaces": [{"networkIP": f"10.1.0.{instance}"}]})


def test_the_instances_of_a_group_are_listed():
    lister = make_gce_lister("p", "z", "g", PORT, Compute(["5", "2"], ["7"]))
    assert lister() == [f"10.1.0.{name}:{PORT}" for name in "257"]


def test_the_own_address_is_that_of_this_machine():
    others = [f"198.51.100.{number}:{PORT}" for number in (1, 2)]  # reserved for documentation
    assert find_own_index([others[0], f"127.0.0.1:{PORT}", others[1]]) == 1
    with pytest.raises(UserError, match="0 of the addresses belong to this machine"):
        find_own_index(others)


@pytest.mark.parametrize("source", ["kubernetes:job-name=txl", "gce:p/z/g"])
def test_what_is_found_is_tf_config(monkeypatch, source):
    addresses = [f"198.51.100.1:{PORT}", f"127.0.0.1:{PORT}"]
    for name in ("make_kubernetes_lister", "make_gce_lister"):
        monkeypatch.setattr(cluster_resolvers, name, lambda *place: lambda: addresses)
    cluster = join(source, size=2)
    assert (cluster.addresses, cluster.index) == (tuple(addresses), 1)
    with pytest.raises(UserError, match="but TF_CONFIG is set, too"):
        join(source, size=2)
