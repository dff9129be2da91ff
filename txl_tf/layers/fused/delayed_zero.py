"""A zero that keeps XLA from computing values of the backward pass in the forward pass."""

from keras import ops

from txl_tf.layers.fused.fusion import get_engine


def delay(tensor, upstream):
    """Returns a tensor that XLA cannot compute with before the upstream gradient is known.

    From the tensor itself, XLA would compute values of the backward pass in the forward pass and
    keep them. An engine compiles both passes apart: nothing is added there.
    """
    if get_engine() is not None:
        return tensor
    return tensor + ops.cast(make_late_zero(upstream), tensor.dtype)


def make_late_zero(tensor):
    """Returns a zero, () float32, that a compiler cannot know before the tensor is computed.

    It is NaN if the first entry of the tensor is NaN.
    """
    return ops.cast(ops.minimum(ops.abs(ops.reshape(tensor, (-1,))[0]), 0), "float32")
