"""The choice of the optimizer by `TrainConfig.optimizer`; the only place that makes it."""

import functools
from collections.abc import Callable

from txl_tf.config import TrainConfig
from txl_tf.training.optimizers.adam import Adam
from txl_tf.training.optimizers.base import Optimizer
from txl_tf.training.optimizers.lamb import Lamb
from txl_tf.training.optimizers.muon import Muon
from txl_tf.training.schedule import make_schedule


def make_optimizer(config: TrainConfig, *, jit: str = "none") -> Optimizer:
    """Returns the optimizer of a run, with its schedule and gradient clipping by global norm.

    Args:
        config: The training config.
        jit: What XLA compiles: "whole", "chains" or "none"; matrix products only with "whole".
    """
    optimizers: dict[str, Callable[..., Optimizer]] = {
        "adam": Adam,
        "adamw": Adam,
        "lamb": functools.partial(Lamb, jit_compile=jit != "none"),
        "muon": functools.partial(
            Muon,
            jit_compile=jit == "whole",
            product_dtype="bfloat16" if config.precision == "bfloat16" else "float32",
        ),
    }
    return optimizers[config.optimizer](
        make_schedule(config),
        name=config.optimizer,
        clip=config.clip,
        weight_decay=config.weight_decay,
        ema=config.ema,
        average_from=config.average_from,
        scales_loss=config.precision == "float16",
        l2=config.l2,
        embed_lr_ratio=config.embed_lr_ratio,
    )
