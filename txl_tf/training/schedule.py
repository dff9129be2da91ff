"""The learning rate as a function of the step."""

from dataclasses import dataclass
from typing import Any

from keras import ops

from txl_tf.config import TrainConfig


@dataclass(frozen=True)
class WarmupCosine:
    """Linear warm-up from 0, then a cosine decay to a fraction of the peak.

    At a step s below `warmup_steps` the rate is `s / warmup_steps * learning_rate`, so step 0 has
    rate 0. A half cosine over `train_steps - warmup_steps` steps follows; after it the rate is
    constant.

    Args:
        learning_rate: The peak.
        warmup_steps: The number of warm-up steps.
        train_steps: The number of steps of the run.
        min_lr_ratio: The final rate divided by the peak.

    >>> [round(float(WarmupCosine(1.0, 2, 4, 0.0)(step)), 3) for step in range(6)]
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]
    """

    learning_rate: float
    warmup_steps: int
    train_steps: int
    min_lr_ratio: float

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate of a step, () float32."""
        step = ops.cast(step, "float32")
        warmup = step / max(1, self.warmup_steps)
        progress = (step - self.warmup_steps) / max(1, self.train_steps - self.warmup_steps)
        cosine = 0.5 * (1 + ops.cos(ops.clip(progress, 0.0, 1.0) * 3.141592653589793))
        decay = self.min_lr_ratio + (1 - self.min_lr_ratio) * cosine
        return self.learning_rate * ops.where(step < self.warmup_steps, warmup, decay)


def make_schedule(config: TrainConfig) -> WarmupCosine:
    """Returns the learning rate schedule of a run."""
    return WarmupCosine(
        config.learning_rate, config.warmup_steps, config.train_steps, config.min_lr_ratio
    )
