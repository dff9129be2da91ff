"""The optimizers: Adam, AdamW, LAMB for large batches, and Muon for the matrices of layers."""

import functools
import pkgutil

import tensorflow as tf

from txl_tf.config import TrainConfig
from txl_tf.config.training import OPTIMIZERS
from txl_tf.errors import UserError
from txl_tf.models.compilation import COMPILED
from txl_tf.training.muon import MOMENTUM, compute_muon_changes, orthogonalize
from txl_tf.training.optimizer import Optimizer, Slots, StepFactors


class Adam(Optimizer):
    """Adam as in TensorFlow 1: epsilon is added to the square root before the bias correction.

    With weight decay, this is AdamW: each step subtracts `rate * weight_decay * weight`. An
    operation of TensorFlow changes a weight and its moments in place, in one pass.

    References:
        Kingma and Ba 2015, https://arxiv.org/abs/1412.6980, the form before section 2.1;
        Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101; here their decay is multiplied
        by the learning rate, as in Keras.
    """

    def change_weight(
        self, slots: Slots, weight: tf.Variable, gradient: tf.Tensor, factors: StepFactors
    ) -> None:
        self.decay(slots, weight, factors)
        assert slots.velocity is not None
        tf.raw_ops.ResourceApplyAdam(
            var=weight.handle,
            m=slots.momentum.value.handle,
            v=slots.velocity.value.handle,
            beta1_power=0.0,  # `lr` includes the bias corrections
            beta2_power=0.0,
            lr=factors.rate * tf.sqrt(factors.bias_2) / factors.bias_1,
            beta1=1 - factors.moment_1,
            beta2=1 - factors.moment_2,
            epsilon=self.epsilon,
            grad=gradient,
        )


class Lamb(Optimizer):
    """LAMB: the update of Adam plus weight decay, scaled to the norm of the weight.

    The paper leaves the function of the weight's norm open: here it is the norm capped at 10, as in
    the code behind the presets `wt103_base_lamb` and `wt103_large_lamb`. The ratio is 1 if either
    norm is 0. Each variable counts as a layer, so the fused queries, keys and values are one layer,
    and so are the biases u (or v) of all layers.

    References:
        You et al. 2020, https://arxiv.org/abs/1904.00962, Algorithm 2. In the `Lamb` of Keras, the
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
        # As tensors: a compiled function would not distinguish the variables of replicas.
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


class Muon(Adam):
    """Muon for the matrices of the layers, and Adam for all other weights.

    The matrices are the group `kernels` of the model's `weight_groups`; `compute_muon_changes`
    computes their change. Learning rate and weight decay are those of AdamW.

    A kernel that joins several matrices side by side (its attribute `n_joint`) is split into them:
    queries, keys and values, or the gates of an LSTM. A matrix has one slot, the momentum. Each
    replica computes all matrices, so that its weights stay equal to those of the others.
    """

    def __init__(self, config: TrainConfig, *, jit: str = "none"):
        super().__init__(config, jit=jit)
        product_dtype = "bfloat16" if config.precision == "bfloat16" else "float32"
        self._orthogonalize = functools.partial(orthogonalize, product_dtype=product_dtype)
        if jit in ("whole", "kernels"):
            # Matrices of one shape share a compiled function.
            self._orthogonalize = tf.function(
                self._orthogonalize, jit_compile=True, autograph=False
            )

    def change_weight(
        self, slots: Slots, weight: tf.Variable, gradient: tf.Tensor, factors: StepFactors
    ) -> None:
        if slots.velocity is not None:
            super().change_weight(slots, weight, gradient, factors)
            return
        self.decay(slots, weight, factors)
        momentum = slots.momentum.value
        # 0 in a skipped step, like the share of Adam.
        share = factors.moment_1 * ((1 - MOMENTUM) / (1 - self.beta_1))
        momentum.assign_add(share * (gradient - momentum))
        n_joint = getattr(slots.weight, "n_joint", 1)
        (change,) = compute_muon_changes([gradient], [momentum], [n_joint], self._orthogonalize)
        weight.assign_sub(factors.rate * change)


def make_optimizer(config: TrainConfig, *, jit: str = "none") -> Optimizer:
    """Returns the optimizer of a run, with its schedule and gradient clipping by global norm.

    Args:
        config: The training config.
        jit: What XLA compiles of the updates of LAMB and Muon: "whole", "chains", "none" or
            "kernels".

    Raises:
        UserError: If `jit` is another value, such as "auto", which `choose_jit` replaces.
    """
    if jit not in COMPILED:
        raise UserError(f"`jit` must be one of {', '.join(COMPILED)}. Received: jit={jit!r}")
    return pkgutil.resolve_name(OPTIMIZERS[config.optimizer].place)(config, jit=jit)
