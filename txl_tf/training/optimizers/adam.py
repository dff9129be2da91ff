"""Adam as in the 2019 release, and AdamW, which is Adam with weight decay."""

import tensorflow as tf

from txl_tf.training.optimizers.optimizer import Optimizer, Slots, StepFactors


class Adam(Optimizer):
    """Adam as in TensorFlow 1: epsilon is added to the square root before the bias correction.

    With weight decay it is AdamW: each step subtracts `rate * weight_decay * weight`. TensorFlow's
    own operation changes a weight and its moments in place, in one pass.

    References:
        Kingma and Ba 2015, https://arxiv.org/abs/1412.6980, the form before section 2.1;
        Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101, whose decay is here multiplied
        by the learning rate, as in Keras.
    """

    def change_weight(
        self, slots: Slots, weight: tf.Variable, gradient: tf.Tensor, factors: StepFactors
    ) -> None:
        self._decay(slots, weight, factors)
        assert slots.velocity is not None
        tf.raw_ops.ResourceApplyAdam(
            var=weight.handle,
            m=slots.momentum.value.handle,
            v=slots.velocity.value.handle,
            beta1_power=0.0,  # the rate has the bias corrections
            beta2_power=0.0,
            lr=factors.rate * tf.sqrt(factors.bias_2) / factors.bias_1,
            beta1=1 - factors.moment_1,
            beta2=1 - factors.moment_2,
            epsilon=self.epsilon,
            grad=gradient,
        )

    def _decay(self, slots: Slots, weight: tf.Variable, factors: StepFactors) -> None:
        if slots.decays and self.config.weight_decay:
            weight.assign_sub(factors.rate * self.config.weight_decay * weight)
