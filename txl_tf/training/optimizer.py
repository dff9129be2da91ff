"""Adam and its schedule, as the 2019 release trains."""

from typing import Any

import keras
from keras import ops

from txl_tf.config import TrainConfig


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


class ReducedAdam(keras.optimizers.Adam):
    """Adam that takes gradients which are the same on every replica, and may skip a step.

    Keras' optimizers clip the gradients of each replica first and add them up afterwards. The
    training step reduces them itself, before the clipping, so this optimizer must not.

    Where `is_good` is false nothing but the step count changes. A branch would do, too, but
    replicas cannot update variables inside one.
    """

    is_good: Any = None  # () bool tensor, set before `apply`; `None`: it is

    def _all_reduce_sum_gradients(self, grads_and_vars: list) -> list:
        return grads_and_vars

    def assign_add(self, variable: Any, value: Any) -> None:
        super().assign_add(variable, self._skip(value))

    def assign_sub(self, variable: Any, value: Any) -> None:
        super().assign_sub(variable, self._skip(value))

    def _skip(self, value: Any) -> Any:
        return value if self.is_good is None else ops.where(self.is_good, value, 0)


def make_optimizer(config: TrainConfig) -> ReducedAdam:
    """Returns the release's Adam: beta .9 and .999, epsilon 1e-8, clipping by the global norm."""
    schedule = WarmupCosine(
        config.learning_rate, config.warmup_steps, config.train_steps, config.min_lr_ratio
    )
    return ReducedAdam(
        schedule,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-8,
        global_clipnorm=config.clip,
        name="adam",
    )


def read_step_count(optimizer: keras.optimizers.Optimizer) -> int:
    """Returns the number of steps that an optimizer has made, outside of any replica."""
    return int(ops.convert_to_numpy(optimizer.iterations))
