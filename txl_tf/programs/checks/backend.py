"""Keras' backend, TensorFlow or JAX, and its device: TF32, time and speed."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from txl_tf.quiet_start import find_backend

Figures = dict[str, Any]

SPEED_SECONDS = 8.0  # of a measurement on an accelerator


class CheckFailedError(Exception):
    """A check failed; the message says what was found."""

    def __init__(self, message: str, figures: Figures):
        super().__init__(message)
        self.figures = figures


class SkippedError(Exception):
    """A check cannot run here; the message says why."""


def require(holds: bool, message: str, figures: Figures) -> None:
    """Raises `CheckFailedError` unless `holds`."""
    if not holds:
        raise CheckFailedError(message, figures)


def is_jax() -> bool:
    """Returns whether Keras computes with JAX instead of TensorFlow."""
    return find_backend()[0] == "jax"


def has_accelerator() -> bool:
    """Returns whether the backend sees a device that is not a CPU."""
    if is_jax():
        import jax

        return jax.default_backend() != "cpu"
    from txl_tf.models import compilation

    return compilation.has_accelerator()


def has_gpu() -> bool:
    """Returns whether the backend sees a GPU."""
    if is_jax():
        import jax

        return jax.default_backend() == "gpu"
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Disables TF32 in products of float32."""
    if is_jax():
        import jax

        with jax.default_matmul_precision("highest"):
            yield
        return
    import tensorflow as tf

    was_on = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(was_on)


def time_call(call: Callable[[], object]) -> float:
    """Returns the median duration of a call in seconds, after a first call that compiles it."""
    call()
    durations: list[float] = []
    while sum(durations) < (SPEED_SECONDS if has_accelerator() else 1.0) or len(durations) < 3:
        start = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)


def measure_peak(dtype: str) -> float:
    """Returns the speed of a large matrix product in FLOP/s."""
    size = 8192 if has_accelerator() else 1024
    matrix = np.random.default_rng(0).normal(size=(size, size)).astype(np.float32)
    if is_jax():
        import jax

        array = jax.numpy.asarray(matrix, dtype)
        multiply = jax.jit(lambda x: abs(x @ x).max())
        return 2 * size**3 / time_call(lambda: np.asarray(multiply(array)))
    import tensorflow as tf

    tensor = tf.cast(matrix, dtype)
    product = tf.function(lambda x: tf.reduce_max(tf.abs(x @ x)), autograph=False)
    return 2 * size**3 / time_call(lambda: product(tensor).numpy())


def measure_bandwidth() -> float:
    """Returns the speed of copying a large array, in bytes read and written per second."""
    import keras

    array = keras.ops.ones(2**28 if has_accelerator() else 2**24)
    compiled: Any
    if is_jax():
        import jax

        compiled = jax.jit(lambda x: x + 1)
    else:
        import tensorflow as tf

        compiled = tf.function(lambda x: x + 1, autograph=False)
    return 2 * 4 * array.shape[0] / time_call(lambda: np.asarray(compiled(array)[:1]))
