"""The learning rate as a function of the step."""

from typing import Any

from keras import ops

from txl_tf.config import TrainConfig


class WarmupCosine:
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
        """Returns the learning rate of a step, () float32."""
        step = ops.cast(step, "float32")
        warmup = step / max(1, self.warmup_steps)
        progress = (step - self.warmup_steps) / max(1, self.train_steps - self.warmup_steps)
        cosine = 0.5 * (1 + ops.cos(ops.clip(progress, 0.0, 1.0) * 3.141592653589793))
        decay = self.min_lr_ratio + (1 - self.min_lr_ratio) * cosine
        return self.learning_rate * ops.where(step < self.warmup_steps, warmup, decay)


def make_schedule(config: TrainConfig) -> WarmupCosine:
    """Returns the schedule of a run: the learning rate as a function of the step."""
    return WarmupCosine(
        config.learning_rate, config.warmup_steps, config.train_steps, config.min_lr_ratio
    )
