"""Gradients written by hand, in one form for all backends of Keras."""

from keras import ops


def custom_gradient(function):
    """Returns a function with a gradient of its own.

    Keras hands the upstream gradient over by position or by name, as the backend does.

    Args:
        function: takes tensors; returns a tensor, and a function from the upstream gradient to the
            gradients of these tensors, `None` for one that has none. What tensors it closes over
            get no gradient, and `keras.remat` on JAX lets none of them in.
    """

    def compute(*inputs):
        outputs, differentiate = function(*inputs)

        def compute_gradients(*args, upstream=None):
            return differentiate(args[0] if upstream is None else upstream)

        return outputs, compute_gradients

    return ops.custom_gradient(compute)
