"""Diagnostics of a run: weight norm and peak memory."""

import resource
from collections.abc import Sequence

import keras
import tensorflow as tf


def measure_norm(variables: Sequence[keras.Variable]) -> float:
    """Returns the global norm of weights, outside any replica."""
    return float(_compute_norm([tf.convert_to_tensor(variable) for variable in variables]))


@tf.function(autograph=False)
def _compute_norm(values: list[tf.Tensor]) -> tf.Tensor:
    return tf.linalg.global_norm(values)


def measure_peak_memory(strategy: tf.distribute.Strategy) -> int | None:
    """Returns the peak memory of a run so far in bytes; `None` if it is not known.

    It is the peak of the fullest device of this process; on a CPU, that of the whole process,
    including tensorflow. The peak of devices of another process, such as some TPUs, is not known.
    """
    devices = [tf.DeviceSpec.from_string(name) for name in strategy.extended.worker_devices]
    if any(device.device_type == "CPU" for device in devices):
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts in KiB
    try:
        infos = [tf.config.experimental.get_memory_info(device.to_string()) for device in devices]
    except (ValueError, tf.errors.OpError):
        return None
    return max(info["peak"] for info in infos)
