"""Hand-written gradients in one form for all backends of Keras."""

import functools

from keras import ops


def as_tensor(weight, dtype="float32"):
    """Returns a weight as a tensor, because custom gradients do not take variables."""
    # A reshape, because a cast to its own dtype may return the variable.
    return ops.reshape(ops.cast(weight, dtype), weight.shape)


def custom_gradient(function):
    """Returns the function with its own gradient.

    Depending on the backend, Keras passes the upstream gradient by position or by name.

    Args:
        function: Takes tensors. Returns a tensor, and a function from the upstream gradient to
            the gradients of these tensors (`None` for a tensor without a gradient). It must not
            close over tensors: they get no gradient, and `keras.remat` on JAX does not allow it.
    """

    def compute(*inputs):
        outputs, differentiate = function(*inputs)

        def compute_gradients(*args, upstream=None):
            return differentiate(args[0] if upstream is None else upstream)

        return outputs, compute_gradients

    return functools.wraps(function)(ops.custom_gradient(compute))
