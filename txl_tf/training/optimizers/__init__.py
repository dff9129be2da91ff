"""The optimizers, which share their base, and the choice by `TrainConfig.optimizer`."""

from txl_tf.config import TrainConfig
from txl_tf.training.optimizers.adam import Adam
from txl_tf.training.optimizers.lamb import Lamb
from txl_tf.training.optimizers.muon import Muon
from txl_tf.training.optimizers.optimizer import Optimizer

_OPTIMIZERS = {"adam": Adam, "adamw": Adam, "lamb": Lamb, "muon": Muon}


def make_optimizer(config: TrainConfig, *, jit: str = "none") -> Optimizer:
    """Returns the optimizer of a run, with its schedule and gradient clipping by global norm.

    Args:
        config: The training config.
        jit: What XLA compiles: "whole", "chains", "none" or "kernels".
    """
    return _OPTIMIZERS[config.optimizer](config, jit=jit)
