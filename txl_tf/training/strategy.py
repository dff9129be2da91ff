"""Where a run takes place."""

from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True)
class Worker:
    """A process of a run.

    Args:
        index: its number, from 0 on; 0 writes what the run shares.
        count: how many there are.
    """

    index: int
    count: int


def make_gpu_strategy() -> tf.distribute.Strategy:
    """Returns a strategy over all GPUs of this machine; over the CPU where there is none."""
    gpus = tf.config.list_logical_devices("GPU")
    return tf.distribute.MirroredStrategy([gpu.name for gpu in gpus] or ["CPU:0"])


def get_worker(strategy: tf.distribute.Strategy) -> Worker:
    """Returns which process of a run this is."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return Worker(0, 1)
    resolver = strategy.cluster_resolver
    tasks = resolver.cluster_spec().as_dict()
    n_chiefs = len(tasks.get("chief", []))
    index = resolver.task_id + (n_chiefs if resolver.task_type == "worker" else 0)
    return Worker(index, n_chiefs + len(tasks.get("worker", [])))
