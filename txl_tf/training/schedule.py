"""The learning rate of a run as a function of the step."""

from collections.abc import Callable
from typing import Any

from keras import ops

from txl_tf.config import TrainConfig


def make_schedule(config: TrainConfig) -> Callable[[Any], Any]:
    """Returns the learning rate of a run, () float32, as a function of the step.

    At a step s below `warmup_steps` the rate is `s / warmup_steps * learning_rate`, so step 0 has
    rate 0. The schedule "cosine" follows a half cosine over all later steps, to `min_lr_ratio` of
    the peak. With "linear" and "wsd" (warm-up, stable, decay) the rate stays at the peak and falls
    linearly in the last `decay_steps`, by default all later steps. Afterwards it is constant.

    >>> shared = {"learning_rate": 1.0, "warmup_steps": 2, "min_lr_ratio": 0.0}
    >>> cosine = make_schedule(TrainConfig(train_steps=4, **shared))
    >>> [round(float(cosine(step)), 3) for step in range(6)]
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]
    >>> wsd = make_schedule(TrainConfig(train_steps=8, decay_steps=4, schedule="wsd", **shared))
    >>> [float(wsd(step)) for step in range(10)]
    [0.0, 0.5, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]

    References:
        Bergsma et al. 2025, Straight to zero, https://arxiv.org/abs/2502.15938 ("linear");
        Hu et al. 2024, MiniCPM, https://arxiv.org/abs/2404.06395, section 4 ("wsd").
    """
    n_after = config.train_steps - config.warmup_steps

    def compute_rate(step: Any) -> Any:
        step = ops.cast(step, "float32")
        warmup = step / max(1, config.warmup_steps)
        if config.schedule == "cosine":
            progress = (step - config.warmup_steps) / max(1, n_after)
            left = 0.5 * (1 + ops.cos(ops.clip(progress, 0.0, 1.0) * 3.141592653589793))
        else:
            n_decay = max(1, config.decay_steps or n_after)
            left = ops.clip((config.train_steps - step) / n_decay, 0.0, 1.0)
        decay = config.min_lr_ratio + (1 - config.min_lr_ratio) * left
        return config.learning_rate * ops.where(step < config.warmup_steps, warmup, decay)

    return compute_rate
