"""LAMB, for large batches."""

import tensorflow as tf

from txl_tf.config import TrainConfig
from txl_tf.training.optimizers.optimizer import Optimizer, Slots, StepFactors


class Lamb(Optimizer):
    """LAMB: the update of Adam plus the weight decay, scaled to the norm of the weight.

    The paper does not fix the function of the weight's norm: here it is the norm capped at 10, as
    in the code of the presets `wt103_base_lamb` and `wt103_large_lamb`. The ratio is 1 if either
    norm is 0. Each variable counts as a layer, so the fused queries, keys and values are one layer,
    and so are the biases u (or v) of all layers.

    References:
        You et al. 2020, https://arxiv.org/abs/1904.00962, Algorithm 2. In the `Lamb` of Keras the
        decay is outside the ratio.
    """

    epsilon = 1e-6  # as in the paper
    largest_norm = 10.0

    def __init__(self, config: TrainConfig, *, jit: str = "none"):
        super().__init__(config, jit=jit)
        # Weights of one shape share a compiled function.
        self._compute = self._compute_update
        if jit != "none":
            self._compute = tf.function(self._compute, jit_compile=True, autograph=False)

    def change_weight(
        self, slots: Slots, weight: tf.Variable, gradient: tf.Tensor, factors: StepFactors
    ) -> None:
        assert slots.velocity is not None
        variables = [weight, slots.momentum.value, slots.velocity.value]
        # Tensors: a compiled function would not tell the variables of replicas apart.
        values = map(tf.convert_to_tensor, variables)
        new_values = self._compute(slots.decays, gradient, factors, *values)
        for variable, value in zip(variables, new_values, strict=True):
            variable.assign(value)

    def _compute_update(
        self,
        decays: bool,
        gradient: tf.Tensor,
        factors: StepFactors,
        weight: tf.Tensor,
        momentum: tf.Tensor,
        velocity: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        momentum += (gradient - momentum) * factors.moment_1
        velocity += (tf.square(gradient) - velocity) * factors.moment_2
        update = momentum / factors.bias_1
        update /= tf.sqrt(velocity / factors.bias_2) + self.epsilon
        if decays:
            update += self.config.weight_decay * weight
        weight_norm, update_norm = (tf.sqrt(tf.reduce_sum(tf.square(x))) for x in (weight, update))
        ratio = tf.where(
            tf.logical_and(weight_norm > 0, update_norm > 0),
            tf.minimum(weight_norm, self.largest_norm) / update_norm,
            1.0,
        )
        return weight - factors.rate * ratio * update, momentum, velocity
