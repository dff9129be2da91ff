"""Training: optimizer, step, and the loops around them."""

from txl_tf.training.optimizer import make_optimizer
from txl_tf.training.step import StepResult, train_step

__all__ = ["StepResult", "make_optimizer", "train_step"]
