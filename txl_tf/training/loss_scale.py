"""Loss scaling, which keeps small gradients from underflowing in float16."""

from collections.abc import Callable

import keras
import tensorflow as tf

FIRST_SCALE = 2.0**15
GROWTH_STEPS = 2000


class LossScale:
    """A dynamic loss scale.

    The loss is multiplied by the scale, and the gradients are divided by it once the replicas have
    averaged them. If they are not finite, all replicas skip the step and halve the scale; after
    `GROWTH_STEPS` good steps in a row the scale is doubled. As a power of 2 it changes no bit of
    a gradient that float16 can represent.

    Args:
        add_variable: Creates a variable that is saved with the optimizer.

    References:
        Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740, section 3.2.
    """

    def __init__(self, add_variable: Callable[..., keras.Variable]):
        shared = {"shape": (), "aggregation": "only_first_replica"}
        self.factor = add_variable(
            name="loss_scale",
            initializer=keras.initializers.Constant(FIRST_SCALE),
            dtype="float32",
            **shared,
        )
        self._n_good = add_variable(name="loss_scale_good_steps", dtype="int32", **shared)

    def read(self) -> tf.Tensor:
        """Returns the scale, () float32."""
        return tf.convert_to_tensor(self.factor)

    def adapt(self, is_good: tf.Tensor) -> None:
        """Updates the scale after a step, inside a replica.

        Args:
            is_good: () bool, whether the averaged gradients were finite; equal on all replicas.
        """
        factor, n_good = self.read(), tf.convert_to_tensor(self._n_good) + 1
        is_grown = tf.logical_and(is_good, n_good >= GROWTH_STEPS)
        grown = tf.where(is_grown, factor * 2, factor)
        self.factor.assign(tf.where(is_good, grown, tf.maximum(factor / 2, 1.0)))
        self._n_good.assign(tf.where(tf.logical_and(is_good, n_good < GROWTH_STEPS), n_good, 0))
