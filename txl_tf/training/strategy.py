"""The distribution strategies of a run: GPUs, CPU, several hosts, TPU."""

import resource
import socket
import urllib.error
from collections.abc import Sequence

import tensorflow as tf

from txl_tf.errors import UserError, explain, explain_errors
from txl_tf.training.cluster import Cluster, read_cluster
from txl_tf.training.signals import end_on_interrupt

CONNECT_SECONDS = 60.0  # to wait for the address of a TPU


def make_gpu_strategy(
    *, num_gpus: int | None = None, cpu_replicas: int = 1
) -> tf.distribute.MirroredStrategy | tf.distribute.MultiWorkerMirroredStrategy:
    """Returns a strategy over the GPUs of this machine, or over its CPU if it has none.

    If TF_CONFIG lists several processes, the strategy spans all of them, and the call waits until
    all have started, for at most an hour. A run of one process can divide the CPU into
    `cpu_replicas`, to try out training on several GPUs.

    In the 2019 code: `assign_to_gpu`.

    Raises:
        UserError: If there are fewer GPUs than `num_gpus`, TF_CONFIG is invalid, the processes
            cannot be joined, or the devices are already in use and cannot be chosen or divided.
    """
    cluster = read_cluster()
    gpus = _use_gpus(cluster, num_gpus, cpu_replicas)
    if cluster:
        return _make_cluster_strategy(cluster)
    if gpus:
        return make_device_strategy([f"GPU:{index}" for index in range(len(gpus))])
    return _make_cpu_strategy(cpu_replicas)


def count_replicas(*, num_gpus: int | None = None, cpu_replicas: int = 1) -> int:
    """Returns the number of replicas of `make_gpu_strategy`, if all processes have equally many.

    Other GPUs are hidden, as they are from the strategy.
    """
    cluster = read_cluster()
    n_local = len(_use_gpus(cluster, num_gpus, cpu_replicas)) or cpu_replicas
    return n_local * (len(cluster.tasks) if cluster else 1)


def _use_gpus(
    cluster: Cluster | None, num_gpus: int | None, cpu_replicas: int
) -> list[tf.config.PhysicalDevice]:
    """Hides all GPUs but those of this process, and returns these; empty for the CPU."""
    gpus = tf.config.list_physical_devices("GPU")
    if num_gpus is not None and num_gpus > len(gpus):
        raise UserError(f"`num_gpus`={num_gpus}, but this machine has {len(gpus)} GPUs")
    chosen = gpus if num_gpus is None else gpus[:num_gpus]
    if chosen and cpu_replicas > 1:
        raise UserError(f"`cpu_replicas` is for the CPU: pass num_gpus=0, not {len(chosen)}")
    if cluster and cpu_replicas > 1:
        raise UserError(f"`cpu_replicas`={cpu_replicas} is only for a run of one process")
    with explain_errors("`num_gpus` must be chosen before TensorFlow is used", RuntimeError):
        tf.config.set_visible_devices(chosen, "GPU")
    return chosen


def _make_cluster_strategy(cluster: Cluster) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Returns a strategy over all processes of a cluster, each with its GPUs or its CPU."""
    others = [cluster.name(index) for index in range(len(cluster.tasks)) if index != cluster.index]
    print(f"Waiting for the other processes of the run: {', '.join(others)}")
    fault = f"the processes of the run cannot be joined at {cluster.addresses[cluster.index]}"
    with explain_errors(fault, tf.errors.OpError), end_on_interrupt():
        return tf.distribute.MultiWorkerMirroredStrategy()


def make_tpu_strategy(
    tpu: str, *, zone: str | None = None, project: str | None = None, cpu_replicas: int = 0
) -> tf.distribute.TPUStrategy | tf.distribute.MirroredStrategy:
    """Returns a strategy over all cores of a TPU; see the flags of `train_tpu`.

    With `cpu_replicas`, parts of this machine's CPU stand in for the cores. Because TPUStrategy
    needs a TPU, MirroredStrategy then divides the lanes and adds the gradients in the same way.
    """
    if cpu_replicas:
        tf.config.set_visible_devices([], "GPU")
        return _make_cpu_strategy(cpu_replicas)
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu, zone, project)
        address = resolver.master()
        if address.startswith("grpc://"):  # TensorFlow would wait for it without a timeout
            host, _, port = address.removeprefix("grpc://").rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    # The resolver uses other packages to query the cloud, each with its own errors.
    except Exception as error:
        reason = explain(error)
        if isinstance(error, urllib.error.URLError):  # the server that describes cloud machines
            reason = "this machine is not in Google Cloud, or has no network"
        tried = f"tpu={tpu!r}, tpu_zone={zone!r}, gcp_project={project!r}"
        raise UserError(
            f"no TPU was found with {tried}: {reason}. txl train trains on GPUs "
            "or the CPU; --cpu_replicas=2 tries this command on the CPU"
        ) from error


def make_device_strategy(devices: Sequence[str]) -> tf.distribute.MirroredStrategy:
    """Returns a strategy with a replica on each logical device, such as "GPU:0"."""
    return tf.distribute.MirroredStrategy(devices)


def measure_peak_memory(strategy: tf.distribute.Strategy) -> int | None:
    """Returns the peak memory of a run so far in bytes; `None` if unknown.

    This is the peak of the fullest device of this process; on a CPU, that of the whole process,
    including TensorFlow. It is unknown for devices of another process, such as some TPUs.
    """
    devices = [tf.DeviceSpec.from_string(name) for name in strategy.extended.worker_devices]
    if any(device.device_type == "CPU" for device in devices):
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts in KiB
    try:
        infos = [tf.config.experimental.get_memory_info(device.to_string()) for device in devices]
    except (ValueError, tf.errors.OpError):
        return None
    return max(info["peak"] for info in infos)


def _make_cpu_strategy(n_replicas: int) -> tf.distribute.MirroredStrategy:
    """Returns a strategy over parts of the CPU."""
    if n_replicas > 1:
        _divide_cpu(n_replicas)
    return make_device_strategy([f"CPU:{index}" for index in range(n_replicas)])


def _divide_cpu(n_devices: int) -> None:
    """Divides the CPU into logical devices, which is possible only before its first use."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * n_devices
    try:
        tf.config.set_logical_device_configuration(cpu, devices)
    except RuntimeError as error:
        if len(tf.config.list_logical_devices("CPU")) < n_devices:
            raise UserError(f"the CPU can no longer be divided: {error}") from error
