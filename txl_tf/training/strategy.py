"""Where a run takes place."""

from dataclasses import dataclass

import tensorflow as tf

from txl_tf.errors import UserError


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
