"""Where a run takes place."""

import tensorflow as tf


def make_gpu_strategy() -> tf.distribute.Strategy:
    """Returns a strategy over all GPUs of this machine; over the CPU where there is none."""
    gpus = tf.config.list_logical_devices("GPU")
    return tf.distribute.MirroredStrategy([gpu.name for gpu in gpus] or ["CPU:0"])
