"""The optimizers and the schedule: Adam as the 2019 release trains, AdamW, LAMB."""

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from txl_tf.config import TrainConfig
from txl_tf.training.loss_scale import LossScale


class WarmupCosine(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from 0, then a cosine down to a share of the peak.

    Step s below `warmup_steps` has the rate `s / warmup_steps * learning_rate`: step 0 has 0.
    From then on a half cosine runs over `train_steps - warmup_steps` steps, and stays at its end.

    Args:
        learning_rate: the peak.
        warmup_steps: steps of warm-up.
        train_steps: all steps.
        min_lr_ratio: the last rate over the peak.

    >>> [round(float(WarmupCosine(1.0, 2, 4, 0.0)(step)), 3) for step in range(6)]
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]
    """

    def __init__(
        self, learning_rate: float, warmup_steps: int, train_steps: int, min_lr_ratio: float
    ):
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.train_steps = train_steps
        self.min_lr_ratio = min_lr_ratio

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32")
        warmup = step / max(1, self.warmup_steps)
        progress = (step - self.warmup_steps) / max(1, self.train_steps - self.warmup_steps)
        cosine = 0.5 * (1 + ops.cos(ops.clip(progress, 0.0, 1.0) * 3.141592653589793))
        decay = self.min_lr_ratio + (1 - self.min_lr_ratio) * cosine
        return self.learning_rate * ops.where(step < self.warmup_steps, warmup, decay)

    def get_config(self) -> dict:
        return dict(vars(self))


class ReducedOptimizer(keras.optimizers.Optimizer):
    """What the optimizers of training share: reduced gradients, skipped steps, decay, averages.

    Keras' optimizers clip the gradients of each replica first and add them up afterwards. The
    training step reduces them itself, before the clipping, so these optimizers must not.

    Where `is_good` is false nothing but the step count changes. A branch would do, too, but
    replicas cannot update variables inside one.

    Weight decay is for matrices: biases, the gains of LayerNorm and the biases u and v of the
    relative attention are left alone, as is usual.

    With `scales_loss` the loss is scaled for float16, by a factor that adapts; see `LossScale`.

    With `use_ema` an average follows each weight: it begins as the weight, and a step that is made
    has `average = ema_momentum * average + (1 - ema_momentum) * weight`.
    """

    is_good: Any = None  # () bool tensor, set before `apply`; `None`: it is
    scales_loss = False  # set before it is built
    loss_scale: LossScale | None = None

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        self.exclude_from_weight_decay([weight for weight in variables if not _takes_decay(weight)])
        super().build(variables)
        self.restart_averages()
        if self.scales_loss:
            self.loss_scale = LossScale(self.add_variable)

    @property
    def averages(self) -> list[tuple[keras.Variable, keras.Variable]]:
        """Each weight and its average; empty without `use_ema`."""
        if not self.use_ema:
            return []
        averages = self._model_variables_moving_average
        return list(zip(self._trainable_variables, averages, strict=True))

    def restart_averages(self) -> None:
        """Has the averages begin at the weights as they are, outside of any replica."""
        with tf.init_scope():  # in a function that builds, it would be done at every call
            for weight, average in self.averages:
                average.assign(weight)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate)
        if self.use_ema:
            average = self._model_variables_moving_average[self._get_variable_index(variable)]
            self.assign_add(average, (1 - self.ema_momentum) * (variable - average))

    def assign_add(self, variable: Any, value: Any) -> None:
        super().assign_add(variable, self._skip(value))

    def assign_sub(self, variable: Any, value: Any) -> None:
        super().assign_sub(variable, self._skip(value))

    def _skip(self, value: Any) -> Any:
        return value if self.is_good is None else ops.where(self.is_good, value, 0)

    def _all_reduce_sum_gradients(self, grads_and_vars: list) -> list:
        return grads_and_vars

    # Keras decays and averages by assignments that would not be skipped: `update_step` does both.
    def _apply_weight_decay(self, variables: list) -> None:
        pass

    def _update_model_variables_moving_average(self, trainable_variables: list) -> None:
        pass


class ReducedAdam(ReducedOptimizer, keras.optimizers.Adam):
    """Adam, in the form of TensorFlow 1: epsilon is added to the root before bias correction."""


class ReducedAdamW(ReducedOptimizer, keras.optimizers.AdamW):
    """Adam with decoupled weight decay: each step takes `rate * weight_decay * weight` off.

    References:
        Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101; here, as in Keras, the
        schedule scales the decay by the learning rate itself.
    """

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        if self._use_weight_decay(variable):
            rate = ops.cast(learning_rate, variable.dtype)
            self.assign_sub(variable, rate * self.weight_decay * variable)
        super().update_step(gradient, variable, learning_rate)


class _PaperLamb(keras.optimizers.Lamb):
    """LAMB whose decay is inside of the update that the trust ratio scales."""

    largest_norm = 10.0

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        m, v = self._momentums[index], self._velocities[index]
        self.assign_add(m, (1 - self.beta_1) * (gradient - m))
        self.assign_add(v, (1 - self.beta_2) * (ops.square(gradient) - v))
        step = ops.cast(self.iterations + 1, variable.dtype)
        root = ops.sqrt(v / (1 - ops.power(self.beta_2, step)))
        update = m / (1 - ops.power(self.beta_1, step)) / (root + self.epsilon)
        if self._use_weight_decay(variable):
            update += self.weight_decay * variable
        weight_norm, update_norm = (ops.sqrt(ops.sum(ops.square(x))) for x in (variable, update))
        ratio = ops.where(
            ops.logical_and(weight_norm > 0, update_norm > 0),
            ops.minimum(weight_norm, self.largest_norm) / update_norm,
            1.0,
        )
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * ratio * update)


class ReducedLamb(ReducedOptimizer, _PaperLamb):
    """LAMB: Adam's update plus the decay, scaled to the norm of the weight that it changes.

    The paper leaves open the function of the weight's norm: here it is the norm up to 10, as in
    the code of the recipes `wt103_base_lamb` and `wt103_large_lamb`. A ratio of 1 stands in where
    either norm is 0. Each variable is a layer of its own, so the fused queries, keys and values
    are one, and so are the biases u (or v) of all layers.

    References:
        You et al. 2020, https://arxiv.org/abs/1904.00962, Algorithm 2. In Keras' `Lamb` the decay
        is outside of the ratio.
    """


def _takes_decay(weight: keras.Variable) -> bool:
    return len(weight.shape) > 1 and not weight.name.endswith("_bias")  # content_bias is u


def make_schedule(config: TrainConfig) -> WarmupCosine:
    """Returns the schedule of a run: the learning rate as a function of the step."""
    return WarmupCosine(
        config.learning_rate, config.warmup_steps, config.train_steps, config.min_lr_ratio
    )


def make_optimizer(config: TrainConfig) -> ReducedOptimizer:
    """Returns the optimizer of a run, with its schedule and clipping by the global norm.

    All have beta .9 and .999. Epsilon is 1e-8, as the release's Adam has it; 1e-6 for LAMB, as in
    its paper.
    """
    optimizers = {"adam": ReducedAdam, "adamw": ReducedAdamW, "lamb": ReducedLamb}
    optimizer = optimizers[config.optimizer](
        make_schedule(config),
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6 if config.optimizer == "lamb" else 1e-8,
        weight_decay=config.weight_decay,
        global_clipnorm=config.clip,
        use_ema=config.ema > 0,
        ema_momentum=config.ema,
        name=config.optimizer,
    )
    optimizer.scales_loss = config.precision == "float16"
    return optimizer


def read_step_count(optimizer: keras.optimizers.Optimizer) -> int:
    """Returns the number of steps that an optimizer has made, outside of any replica."""
    return int(ops.convert_to_numpy(optimizer.iterations))
