"""Chains of element-wise operations, each of which a compiler can fuse.

XLA fuses a chain of element-wise operations into a few loops, but on CPUs it multiplies matrices
slower than TensorFlow's own kernels (oneDNN), most of all in bfloat16. An engine can therefore take
over: it compiles the chains, and computes the products between them with its own kernels. A chain
is compiled once for all layers, so this also starts sooner than compiling a whole step.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable
from typing import Any, NamedTuple


class Engine(NamedTuple):
    """The functions that compute chains, products and attention; `None` for ordinary operations.

    Args:
        compile: Takes a function of tensors and its tensors, and returns its compiled form for
            tensors of these shapes and dtypes.
        multiply: The product of two batches of matrices; see
            `txl_tf.layers.fused.matrix_products.multiply`.
        attend: The attention of a layer; see `txl_tf.layers.attention.attend`.
    """

    compile: Callable[..., Callable[..., Any]] | None = None
    multiply: Callable[..., Any] | None = None
    attend: Callable[..., Any] | None = None


PLAIN = Engine()
_engine: contextvars.ContextVar[Engine] = contextvars.ContextVar("engine", default=PLAIN)


def get_engine() -> Engine:
    """Returns the engine in use."""
    return _engine.get()


@contextlib.contextmanager
def use_engine(engine: Engine):
    """Makes an engine the one in use within a `with` block."""
    token = _engine.set(engine)
    try:
        yield
    finally:
        _engine.reset(token)


def chain(function):
    """Marks a function of tensors as a chain. With an engine, no gradient flows through it.

    Args:
        function: Takes tensors or `None` by position and hashable settings by name. Returns one or
            several tensors. It must not close over tensors.

    Returns:
        A function with the same arguments and values.
    """
    compiled = {}

    @functools.wraps(function)
    def call(*tensors, **settings):
        engine = get_engine()
        if engine.compile is None:
            return function(*tensors, **settings)
        is_given = [tensor is not None for tensor in tensors]
        given = [tensor for tensor in tensors if tensor is not None]
        shapes = [(tensor.dtype, *tensor.shape) for tensor in given]
        key = (engine, *is_given, *shapes, *sorted(settings.items()))
        if key not in compiled:

            def compute(*given):
                remaining = iter(given)
                return function(*(next(remaining) if x else None for x in is_given), **settings)

            compiled[key] = engine.compile(compute, given)
        return compiled[key](*given)

    return call
