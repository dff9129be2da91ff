"""The rules by which weights follow a text (Krause et al. 2018, 2019)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.config.dynamic import DynamicConfig
from txl_tf.scoring.gradient_statistics import GradientStatistics


class WeightStep(NamedTuple):
    """The tensors that every rule needs for a step of a weight, which may have any shape."""

    weight: tf.Tensor
    start: tf.Tensor  # its value before the evaluation
    gradient: tf.Tensor  # of the segment's mean loss
    rate: tf.Tensor  # () float32
    decay: tf.Tensor  # () float32, the rate of the return to `start`


Rule = Callable[..., tf.Tensor]  # a weight after a step, from a `WeightStep` and constants


def change_sgd(step: WeightStep) -> tf.Tensor:
    """Returns the weight after a step of `sgd`."""
    return step.weight + step.decay * (step.start - step.weight) - step.rate * step.gradient


def change_rms(step: WeightStep, root: tf.Tensor, mean: tf.Tensor, epsilon: tf.Tensor) -> tf.Tensor:
    """Returns the weight after a step of `rms`: `root` is S, `mean` that of S over all weights."""
    pull = tf.minimum(step.decay * root / mean, 1.0)  # decay * min(S / mean, 1 / decay)
    change = pull * (step.start - step.weight) - step.rate * step.gradient / (root + epsilon)
    return step.weight + change


def change_rms2019(step: WeightStep, root_sum: tf.Tensor, epsilon: tf.Tensor) -> tf.Tensor:
    """Returns the weight after a step of `rms2019`: `root_sum` is that of the squared gradients."""
    pull = step.decay * root_sum
    change = pull * (step.start - step.weight) - step.rate * step.gradient / (root_sum + epsilon)
    return step.weight + change


def prepare_rule(
    config: DynamicConfig, statistics: GradientStatistics | None
) -> tuple[Rule, list[list[tf.Tensor]] | None]:
    """Returns the rule of a config, and for each weight its constants; `None` if it has none."""
    if not config.has_statistics:
        return change_sgd, None
    if statistics is None:
        raise ValueError(f"`statistics` must be given with rule={config.rule!r}")
    epsilon = tf.constant(config.epsilon, tf.float32)
    if config.rule == "rms2019":
        return change_rms2019, [[tf.constant(root), epsilon] for root in statistics.sum_roots]
    roots = statistics.mean_roots
    mean = tf.constant(average_means(roots), tf.float32)
    return change_rms, [[tf.constant(root), mean, epsilon] for root in roots]


def average_means(roots: Sequence[np.ndarray]) -> float:
    """Returns the mean over the weights of their means."""
    return sum(float(root.mean(dtype=np.float64)) for root in roots) / len(roots)
