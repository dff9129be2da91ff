"""The gradients of a loss."""

import warnings

import tensorflow as tf

from txl_tf.models.segment_model import SegmentModel


def take_gradients(tape: tf.GradientTape, loss: tf.Tensor, model: SegmentModel) -> list[tf.Tensor]:
    """Returns the dense gradients of a loss, in the order of `model.trainable_variables`."""
    with warnings.catch_warnings():
        # Embedding and softmax share weights: their gradients are added, which makes them dense.
        warnings.filterwarnings("ignore", "Converting sparse IndexedSlices", UserWarning)
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        # The norm of the embedding's IndexedSlices would count repeated tokens separately.
        return [tf.convert_to_tensor(gradient) for gradient in gradients]
