"""TF_CONFIG from where clusters keep the addresses: Slurm, Kubernetes, groups of Google Cloud VMs.

TensorFlow's own cluster resolvers find the addresses. Which of them belongs to this process is
found here, because these resolvers either do not tell or, for Slurm, number the hosts by another
order than Slurm does.
"""

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from txl_tf.errors import StoppedError, UserError, explain, name_install_command
from txl_tf.training.cluster import VARIABLE, Cluster
from txl_tf.training.signals import stop_at_once

FORMS = "slurm, kubernetes:LABEL=VALUE or gce:PROJECT/ZONE/GROUP"
PORT = 8470  # default, that of TensorFlow's resolvers
_POLL_SECONDS = 2.0
_MANY = 2**16


def set_tf_config(source: str, *, port: int, size: int | None, seconds: float) -> Cluster:
    """Sets TF_CONFIG to the processes of the run, and returns them.

    Args:
        source: "slurm"; "kubernetes:" with the label selector of the pods; or "gce:" with project,
            zone and name of an instance group, separated by slashes.
        port: The port of each process; on Slurm that of the first process on each host.
        size: The number of processes, for which the call waits; Slurm knows it.
        seconds: The time limit of the wait.

    Raises:
        UserError: If the source is not valid, the processes are not found in time, none of them is
            this one, or TF_CONFIG is set already.
        StoppedError: If a signal to stop came during the wait.
    """
    if os.environ.get(VARIABLE):
        raise UserError(f"`cluster`={source}, but {VARIABLE} is set, too: unset one of them")
    kind, _, place = source.partition(":")
    with _explain(kind):
        if kind == "slurm" and not place:
            addresses, index = _ask_slurm(port, size)
        else:
            list_addresses = _make_lister(kind, place, port)
            if size is None:
                raise UserError(f"`cluster`={source} needs `cluster_size`, the number of processes")
            with stop_at_once("it waited for the addresses of the run"):
                addresses = wait_for_addresses(list_addresses, size, seconds)
            index = find_own_index(addresses)
    task = {"type": "worker", "index": index}
    text = json.dumps({"cluster": {"worker": list(addresses)}, "task": task})
    cluster = Cluster.from_json(text)
    assert cluster is not None, "the list of addresses is not empty"
    os.environ[VARIABLE] = text
    print(f"This is {cluster.name(index)}, of {len(addresses)} processes by {kind}.")
    return cluster


def wait_for_addresses(
    list_addresses: Callable[[], list[str]],
    size: int,
    seconds: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Returns the addresses of all processes, once there are as many as there should be.

    Args:
        list_addresses: Returns the `host:port` of the processes that run now; raises a
            `RuntimeError` while one is starting.
        size: The number of processes.
        seconds: The time limit.
        sleep: Waits between two questions.

    Raises:
        UserError: If there are too many, or too few at the end of the time.
    """
    end, found, reason = time.monotonic() + seconds, [], ""
    while True:
        try:
            found, reason = list_addresses(), ""
        except RuntimeError as error:  # a pod that is not yet running
            reason = f" ({explain(error)})"
        if len(found) > size:
            raise UserError(
                f"`cluster_size`={size}, but {len(found)} processes were found: {', '.join(found)}"
            )
        if len(found) == size and not reason:
            return found
        if time.monotonic() >= end:
            raise UserError(
                f"{len(found)} of `cluster_size`={size} processes were found within "
                f"{seconds / 60:g} minutes{reason}"
            )
        sleep(_POLL_SECONDS)


def find_own_index(addresses: Sequence[str]) -> int:
    """Returns the index of the only address, `host:port`, whose host is this machine.

    Raises:
        UserError: If there is none, or more than one.
    """
    own = [index for index, address in enumerate(addresses) if _is_own(address)]
    if len(own) != 1:
        raise UserError(
            f"{len(own)} of the addresses belong to this machine, but must be 1: "
            f"{', '.join(addresses)}"
        )
    return own[0]


def _is_own(address: str) -> bool:
    """Returns whether a socket can be bound there: only at an address of this machine."""
    try:
        with socket.create_server((address.rpartition(":")[0], 0)):
            return True
    except OSError:
        return False


def _ask_slurm(port: int, size: int | None) -> tuple[list[str], int]:
    """Returns the addresses of all tasks of the job step, and the index of this one.

    TensorFlow's resolver sorts the hosts by name, so `node10` comes before `node2`, where Slurm
    goes by number. So the index is taken from the name of the host and the local number of the
    task, and not from the rank.
    """
    import tensorflow as tf

    # With fewer GPUs than tasks the resolver would leave tasks out. It need not know them.
    resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
        port_base=port, gpus_per_node=_MANY, gpus_per_task=1, auto_set_gpu=False
    )
    addresses = resolver.cluster_spec().job_tasks("worker")
    if size not in (None, len(addresses)):
        raise UserError(f"`cluster_size`={size}, but Slurm started {len(addresses)} tasks")
    host, local = os.environ.get("SLURMD_NODENAME", ""), os.environ.get("SLURM_LOCALID", "0")
    address = f"{host}:{port + int(local)}"
    if address not in addresses:
        raise UserError(f"SLURMD_NODENAME={host} is not among {', '.join(addresses)}")
    on_host = sum(other.rpartition(":")[0] == host for other in addresses)
    _share_gpus(int(local), on_host)
    return addresses, addresses.index(address)


def _share_gpus(local: int, on_host: int) -> None:
    """Restricts this task to its share of the GPUs of the host, if all of its tasks see them all.

    They do unless the job asks for GPUs for each task.
    """
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    share = len(visible) // on_host
    if share and len(visible) == int(os.environ.get("SLURM_GPUS_ON_NODE", "0")):
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible[local * share :][:share])


def _make_lister(kind: str, place: str, port: int) -> Callable[[], list[str]]:
    """Returns a function that asks for the addresses of the processes that run now."""
    if kind == "kubernetes" and place:
        return make_kubernetes_lister(place, port)
    if kind == "gce" and re.fullmatch(r"[^/]+/[^/]+/[^/]+", place):
        project, zone, group = place.split("/")
        return make_gce_lister(project, zone, group, port)
    raise UserError(f"`cluster` must be {FORMS}. Received: {kind}{place and ':' + place}")


def make_kubernetes_lister(selector: str, port: int, client: Any = None) -> Callable[[], list[str]]:
    """Returns a function that lists the hosts of the pods with a label.

    Args:
        selector: The label selector, such as "job-name=txl".
        port: The port of each process.
        client: A `kubernetes.client.CoreV1Api`; `None` for that of the pod's service account.
    """
    import tensorflow as tf

    if client is None:
        import kubernetes

        kubernetes.config.load_incluster_config()
        client = kubernetes.client.CoreV1Api()
    # Without a client, the resolver looks for the configuration file of a user, which pods lack.
    resolver = tf.distribute.cluster_resolver.KubernetesClusterResolver(
        {"worker": [selector]}, port, override_client=client
    )
    return lambda: _list_workers(resolver)


def make_gce_lister(
    project: str, zone: str, group: str, port: int, service: Any = None
) -> Callable[[], list[str]]:
    """Returns a function that lists the internal addresses of an instance group.

    Args:
        project: The cloud project.
        zone: The zone of the group.
        group: The name of the group.
        port: The port of each process.
        service: The Compute Engine API, version 1, of `googleapiclient.discovery.build`; `None` for
            that of the application default credentials.
    """
    import tensorflow as tf

    if service is None:
        from googleapiclient import discovery

        service = discovery.build("compute", "v1")
    resolver = tf.distribute.cluster_resolver.GCEClusterResolver(
        project, zone, group, port, credentials=None, service=_Service(service)
    )
    return lambda: _list_workers(resolver)


def _list_workers(resolver: Any) -> list[str]:
    return resolver.cluster_spec().as_dict().get("worker") or []


class _Service:
    """Compute Engine's API with the name of a parameter that TensorFlow's resolver gives it.

    The resolver says `instanceGroups`; the API has always called it `instanceGroup`, and refuses
    other names. It also leaves out `items` where there are none.
    """

    def __init__(self, service: Any):
        self._service = service

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    def instanceGroups(self) -> "_Groups":  # noqa: N802  the API's name
        return _Groups(self._service.instanceGroups())


class _Groups:
    def __init__(self, groups: Any):
        self._groups = groups

    def listInstances(self, *, instanceGroups: str, **more: Any) -> Any:  # noqa: N802, N803
        return _Request(self._groups.listInstances(instanceGroup=instanceGroups, **more))

    def listInstances_next(self, previous_request: Any, previous_response: Any) -> Any:  # noqa: N802
        request = self._groups.listInstances_next(previous_request.inner, previous_response)
        return request and _Request(request)


class _Request:
    def __init__(self, inner: Any):
        self.inner = inner

    def execute(self) -> dict[str, Any]:
        return {"items": [], **self.inner.execute()}


@contextlib.contextmanager
def _explain(kind: str) -> Iterator[None]:
    """Turns the errors of resolvers and of the clients below them into one line."""
    try:
        yield
    except (UserError, StoppedError):
        raise
    except ImportError as error:
        raise UserError(f"{explain(error)}: {name_install_command(kind)}") from error
    # Each client has errors of its own.
    except Exception as error:
        raise UserError(f"the addresses could not be had from {kind}: {explain(error)}") from error
