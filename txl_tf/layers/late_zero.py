"""A zero that keeps XLA from computing values of the backward pass in the forward pass."""

from keras import ops


def make_late_zero(tensor):
    """Returns a zero, () float32, that a compiler cannot know before the tensor is computed.

    It is NaN if the first entry of the tensor is NaN.
    """
    return ops.cast(ops.minimum(ops.abs(ops.reshape(tensor, (-1,))[0]), 0), "float32")
