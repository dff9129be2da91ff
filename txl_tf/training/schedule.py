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


@dataclass(frozen=True)
class WarmupLinear:
    """Linear warm-up from 0, the peak, then a linear decay to a fraction of the peak.

    The warm-up is that of `WarmupCosine`. The decay takes the last `decay_steps` of the run; after
    it the rate is constant.

    Args:
        learning_rate: The peak.
        warmup_steps: The number of warm-up steps.
        decay_steps: The number of steps of the decay; all steps after the warm-up for the schedule
            "linear", fewer for "wsd" (warm-up, stable, decay).
        train_steps: The number of steps of the run.
        min_lr_ratio: The final rate divided by the peak.

    >>> [float(WarmupLinear(1.0, 2, 4, 8, 0.0)(step)) for step in range(10)]
    [0.0, 0.5, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]

    References:
        Bergsma et al. 2025, Straight to zero, https://arxiv.org/abs/2502.15938 ("linear");
        Hu et al. 2024, MiniCPM, https://arxiv.org/abs/2404.06395, section 4 ("wsd").
    """

    learning_rate: float
    warmup_steps: int
    decay_steps: int
    train_steps: int
    min_lr_ratio: float

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate of a step, () float32."""
        step = ops.cast(step, "float32")
        warmup = step / max(1, self.warmup_steps)
        left = ops.clip((self.train_steps - step) / max(1, self.decay_steps), 0.0, 1.0)
        decay = self.min_lr_ratio + (1 - self.min_lr_ratio) * left
        return self.learning_rate * ops.where(step < self.warmup_steps, warmup, decay)


def make_schedule(config: TrainConfig) -> WarmupCosine | WarmupLinear:
    """Returns the learning rate schedule of a run."""
    if config.schedule == "cosine":
        return WarmupCosine(
            config.learning_rate, config.warmup_steps, config.train_steps, config.min_lr_ratio
        )
    decay_steps = config.decay_steps or config.train_steps - config.warmup_steps
    return WarmupLinear(
        config.learning_rate,
        config.warmup_steps,
        decay_steps,
        config.train_steps,
        config.min_lr_ratio,
    )
