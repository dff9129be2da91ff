"""Where a run takes place."""

from dataclasses import dataclass

import tensorflow as tf

from txl_tf.errors import UserError
from txl_tf.training.files import explain


@dataclass(frozen=True)
class Worker:
    """A process of a run.

    Args:
        index: its number, from 0 on; 0 writes what the run shares.
        count: how many there are.
    """

    index: int
    count: int


def make_gpu_strategy(
    *, num_gpus: int | None = None, cpu_replicas: int = 1
) -> tf.distribute.MirroredStrategy:
    """Returns a strategy over GPUs of this machine; over its CPU where there is none.

    Args:
        num_gpus: how many GPUs, 0 for the CPU; `None` for all there are.
        cpu_replicas: on the CPU, into how many logical devices it is divided: to try out what
            several GPUs would compute.

    Raises:
        UserError: there are fewer GPUs, or the CPU was in use before and cannot be divided.
    """
    names = [gpu.name for gpu in tf.config.list_physical_devices("GPU")]
    if num_gpus is not None and num_gpus > len(names):
        raise UserError(f"`num_gpus`={num_gpus}, but this machine has {len(names)} GPUs")
    if num_gpus is None:
        num_gpus = len(names)
    if num_gpus:
        if cpu_replicas > 1:
            raise UserError(f"`cpu_replicas` is for the CPU: pass num_gpus=0, not {num_gpus}")
        return tf.distribute.MirroredStrategy([f"GPU:{index}" for index in range(num_gpus)])
    if cpu_replicas > 1:
        _divide_cpu(cpu_replicas)
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(cpu_replicas)])


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
        reason = explain(error) or type(error).__name__
        raise UserError(f"no TPU was found with {tried}: {reason}") from error


def _divide_cpu(n_devices: int) -> None:
    """Divides the CPU into logical devices, which is possible before its first use."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * n_devices
    try:
        tf.config.set_logical_device_configuration(cpu, devices)
    except RuntimeError as error:
        if len(tf.config.list_logical_devices("CPU")) < n_devices:
            raise UserError(f"the CPU cannot be divided any more: {error}") from error


def get_worker(strategy: tf.distribute.Strategy) -> Worker:
    """Returns which process of a run this is."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return Worker(0, 1)
    resolver = strategy.cluster_resolver
    tasks = resolver.cluster_spec().as_dict()
    n_chiefs = len(tasks.get("chief", []))
    index = resolver.task_id + (n_chiefs if resolver.task_type == "worker" else 0)
    return Worker(index, n_chiefs + len(tasks.get("worker", [])))
