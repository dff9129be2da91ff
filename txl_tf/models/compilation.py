"""Compilation by XLA in the modes of `jit`, and out-of-memory errors."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from txl_tf.config import JIT_MODES
from txl_tf.errors import UserError, explain, require_extra
from txl_tf.layers.fused.fusion import Engine, use_engine
from txl_tf.layers.fused.tpu_attention import TPU

Key = TypeVar("Key")
Value = TypeVar("Value")
# What XLA compiles in each mode, in words.
COMPILED = {
    "whole": "the whole step",
    "chains": "the chains of operations between the matrix products",
    "none": "nothing",
    "kernels": "the whole step, with attention in kernels for TPUs",
}


class Recent(dict[Key, Value]):
    """A cache of the most recently used values, such as compiled functions, which take memory.

    >>> recent = Recent(2)
    >>> [recent.get_or_make(key, lambda: key.upper()) for key in "abac"], list(recent)
    (['A', 'B', 'A', 'C'], ['a', 'c'])
    """

    def __init__(self, most: int):
        super().__init__()
        self._most = most

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """Returns the value of a key, which is made if it is not cached."""
        self[key] = value = self.pop(key) if key in self else make()  # at the end
        if len(self) > self._most:
            del self[next(iter(self))]
        return value


def choose_jit(jit: str, dtype: str) -> str:
    """Returns the given mode, or for "auto" the mode that suits the compute dtype.

    Raises:
        UserError: If the mode is unknown.
    """
    if jit not in JIT_MODES:
        raise UserError(f"`jit` must be one of {', '.join(JIT_MODES)}. Received: jit={jit!r}")
    if jit != "auto":
        return jit
    return "whole" if has_accelerator() or dtype == "float32" else "chains"


def has_accelerator() -> bool:
    """Returns whether TensorFlow sees a device that is not a CPU."""
    return any(device.device_type != "CPU" for device in tf.config.get_visible_devices())


def compile_function(function: Callable[..., Any], jit: str, dtype: str = "float32") -> Any:
    """Returns a `tf.function`; `jit`, one of `JIT_MODES`, says how much of it XLA compiles.

    "whole" compiles the whole function; "chains", the chains of element-wise operations between the
    matrix products (see `txl_tf.layers.fused.fusion`); "none", nothing; "kernels", the whole
    function, with kernels for TPUs (see `txl_tf.layers.fused.tpu_attention`). For "auto", see
    `choose_jit`.

    Raises:
        UserError: If `jit` is unknown, or if it is "kernels" and there is no TPU or JAX is not
            installed.
    """
    jit = choose_jit(jit, dtype)
    if jit == "kernels":
        check_kernels()
    engine = {"chains": CHAINS, "kernels": TPU}.get(jit)
    if engine is None:  # tracing then uses the engine that is active
        return tf.function(function, jit_compile=jit == "whole", autograph=False)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with use_engine(engine):
            return function(*arguments, **options)

    return tf.function(call, jit_compile=jit == "kernels", autograph=False)


def check_kernels() -> None:
    """Checks that there is a TPU, and what its kernels need."""
    if not tf.config.list_logical_devices("TPU"):
        raise UserError("jit=kernels needs a TPU")
    with require_extra("kernels", "jit=kernels"):
        import jax  # noqa: F401


def _compile_chain(chain: Callable[..., Any], tensors: Sequence[tf.Tensor]) -> Callable[..., Any]:
    """Returns a chain, compiled by XLA for the shapes and dtypes of these tensors."""
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
    with tf.init_scope():
        compiled = tf.function(chain, jit_compile=True, autograph=False)
        concrete = compiled.get_concrete_function(*specs)

    def call(*tensors: tf.Tensor) -> Any:
        # For watched tensors, TensorFlow would build a gradient function and keep its inputs.
        return concrete(*map(tf.stop_gradient, tensors))

    return call


CHAINS = Engine(_compile_chain, tf.matmul)  # for use while a `tf.function` is traced


@contextlib.contextmanager
def explain_full_memory(advice: str) -> Iterator[None]:
    """Converts TensorFlow's out-of-memory error to a `UserError` with advice."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise UserError(f"the device has too little memory {advice} ({explain(error)})") from error
