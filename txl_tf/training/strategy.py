"""Where a run takes place."""

import tensorflow as tf

from txl_tf.errors import UserError, explain, explain_errors
from txl_tf.training.cluster import CONNECT_MINUTES, Cluster
from txl_tf.training.rendezvous import end_when_stuck, wait_for_processes
from txl_tf.training.signals import end_on_interrupt, stop_at_once

_JOIN_SECONDS = 60.0  # at least so long may tensorflow take to join processes that are all there


def make_gpu_strategy(
    *,
    num_gpus: int | None = None,
    cpu_replicas: int = 1,
    connect_minutes: float = CONNECT_MINUTES,
) -> tf.distribute.MirroredStrategy | tf.distribute.MultiWorkerMirroredStrategy:
    """Returns a strategy over GPUs of this machine; over its CPU where there is none.

    Where TF_CONFIG names several processes it spans all of them, and waits until all have begun.

    Args:
        num_gpus: how many GPUs, 0 for the CPU; `None` for all there are.
        cpu_replicas: on the CPU, into how many logical devices it is divided: to try out what
            several GPUs would compute. One process alone can do so.
        connect_minutes: how long to wait for the other processes; 0 for no limit.

    Raises:
        UserError: there are fewer GPUs, TF_CONFIG cannot be used, other processes did not begin in
            time, or the CPU was in use before and cannot be divided.
        StoppedError: a signal to stop came while it waited.
    """
    cluster = Cluster.from_environment()
    gpus = _choose_gpus(cluster, num_gpus, cpu_replicas)
    if cluster:
        return _make_cluster_strategy(cluster, gpus, 60 * connect_minutes or float("inf"))
    num_gpus = len(gpus)
    if num_gpus:
        return tf.distribute.MirroredStrategy([f"GPU:{index}" for index in range(num_gpus)])
    if cpu_replicas > 1:
        _divide_cpu(cpu_replicas)
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(cpu_replicas)])


def count_replicas(*, num_gpus: int | None = None, cpu_replicas: int = 1) -> int:
    """Returns how many replicas `make_gpu_strategy` would have, if all processes have as many.

    Raises:
        UserError: there are fewer GPUs, or TF_CONFIG cannot be used.
    """
    cluster = Cluster.from_environment()
    n_local = len(_choose_gpus(cluster, num_gpus, cpu_replicas)) or cpu_replicas
    return n_local * (len(cluster.tasks) if cluster else 1)


def _choose_gpus(
    cluster: Cluster | None, num_gpus: int | None, cpu_replicas: int
) -> list[tf.config.PhysicalDevice]:
    """Returns the GPUs of this process; none for the CPU."""
    gpus = tf.config.list_physical_devices("GPU")
    if num_gpus is not None and num_gpus > len(gpus):
        raise UserError(f"`num_gpus`={num_gpus}, but this machine has {len(gpus)} GPUs")
    chosen = gpus if num_gpus is None else gpus[:num_gpus]
    if chosen and cpu_replicas > 1:
        raise UserError(f"`cpu_replicas` is for the CPU: pass num_gpus=0, not {len(chosen)}")
    if cluster and cpu_replicas > 1:
        raise UserError(f"`cpu_replicas`={cpu_replicas} is for a run of one process")
    return chosen


def _make_cluster_strategy(
    cluster: Cluster, gpus: list[tf.config.PhysicalDevice], seconds: float
) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Returns a strategy over all processes of a cluster, each with some GPUs or its CPU."""
    others = [cluster.name(index) for index in range(len(cluster.tasks)) if index != cluster.index]
    limit = f"at most {seconds / 60:g} minutes" if seconds < float("inf") else "without a limit"
    print(f"Waits for the other processes of the run, {limit}: {', '.join(others)}")
    with stop_at_once("it waited for the other processes of the run"):
        wait_for_processes(cluster, seconds)
    seconds = max(seconds, _JOIN_SECONDS)
    line = (
        f"{', '.join(others)}: one of them has ended, or cannot be reached: all had begun, and "
        f"were not joined within {seconds / 60:g} minutes"
    )
    tf.config.set_visible_devices(gpus, "GPU")
    fault = f"the processes of the run cannot be joined at {cluster.address}"
    with (
        explain_errors(fault, tf.errors.OpError),
        end_on_interrupt(),
        end_when_stuck(seconds, line),
    ):
        return tf.distribute.MultiWorkerMirroredStrategy()


def make_tpu_strategy(
    tpu: str, *, zone: str | None = None, project: str | None = None
) -> tf.distribute.TPUStrategy:
    """Returns a strategy over all cores of a TPU.

    Args:
        tpu: its name; "local" on a TPU VM; or an address, "grpc://10.0.0.2:8470".
        zone: its zone in the cloud; `None` for this machine's.
        project: its project in the cloud; `None` for this machine's.

    Raises:
        UserError: it cannot be found, or not be started.
    """
    tried = f"tpu={tpu!r}, tpu_zone={zone!r}, gcp_project={project!r}"
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu, zone, project)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    # The resolver asks the cloud by other packages, each with errors of its own.
    except Exception as error:
        raise UserError(f"no TPU was found with {tried}: {explain(error)}") from error


def _divide_cpu(n_devices: int) -> None:
    """Divides the CPU into logical devices, which is possible before its first use."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * n_devices
    try:
        tf.config.set_logical_device_configuration(cpu, devices)
    except RuntimeError as error:
        if len(tf.config.list_logical_devices("CPU")) < n_devices:
            raise UserError(f"the CPU cannot be divided any more: {error}") from error
