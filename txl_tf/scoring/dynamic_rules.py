"""The rules by which weights follow a text."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.config.dynamic import DynamicConfig
from txl_tf.scoring.gradient_statistics import GradientStatistics


class WeightStep(NamedTuple):
    """What every rule needs for a step of a weight.

    Args:
        weight: The weight, of any shape.
        start: Its value before the evaluation.
        gradient: The gradient of the segment's mean loss.
        rate: () float32, the learning rate.
        decay: () float32, the rate of the return to `start`.
    """

    weight: tf.Tensor
    start: tf.Tensor
    gradient: tf.Tensor
    rate: tf.Tensor
    decay: tf.Tensor


# Returns the weight after a step, from a `WeightStep` and constants of the rule.
Rule = Callable[..., tf.Tensor]


def change_sgd(step: WeightStep) -> tf.Tensor:
    """Returns the weight after a step of `sgd`."""
    return step.weight + step.decay * (step.start - step.weight) - step.rate * step.gradient


def change_rms(step: WeightStep, root: tf.Tensor, mean: tf.Tensor, epsilon: tf.Tensor) -> tf.Tensor:
    """Returns the weight after a step of `rms` (Krause et al. 2019, section 3).

    Args:
        step: The step.
        root: The root mean square S of the gradients, in the shape of the weight.
        mean: () float32, the mean of S over all weights.
        epsilon: () float32, the constant added to S.
    """
    pull = tf.minimum(step.decay * root / mean, 1.0)  # decay * min(S / mean, 1 / decay)
    change = pull * (step.start - step.weight) - step.rate * step.gradient / (root + epsilon)
    return step.weight + change


def change_rms2019(step: WeightStep, root_sum: tf.Tensor, epsilon: tf.Tensor) -> tf.Tensor:
    """Returns the weight after a step of `rms2019`.

    Args:
        step: The step.
        root_sum: The root of the sum of the squared gradients, in the shape of the weight.
        epsilon: () float32, the constant added to it.
    """
    pull = step.decay * root_sum
    change = pull * (step.start - step.weight) - step.rate * step.gradient / (root_sum + epsilon)
    return step.weight + change


def prepare_rule(
    config: DynamicConfig, statistics: GradientStatistics | None
) -> tuple[Rule, list[list[tf.Tensor]] | None]:
    """Returns the rule of a config, and for each weight its constants; `None` if it has none.

    Args:
        config: The config.
        statistics: The statistics of the gradients; not used by a rule without.

    Raises:
        ValueError: If the rule needs statistics and there are none.
    """
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
