"""The rules by which weights follow a text.

A rule returns a weight after a step, from the weight, its value before the evaluation (`start`),
the gradient of the segment's mean loss, the learning rate, the decay, which is the rate of the
return to `start`, and constants of the rule.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from txl_tf.config.dynamic import DynamicConfig
from txl_tf.scoring.gradient_statistics import GradientStatistics

Rule = Callable[..., tf.Tensor]


def change_sgd(
    weight: tf.Tensor, start: tf.Tensor, gradient: tf.Tensor, rate: tf.Tensor, decay: tf.Tensor
) -> tf.Tensor:
    """Returns the weight after a step of `sgd`."""
    return weight + decay * (start - weight) - rate * gradient


def change_rms(
    weight: tf.Tensor,
    start: tf.Tensor,
    gradient: tf.Tensor,
    rate: tf.Tensor,
    decay: tf.Tensor,
    root: tf.Tensor,
    mean: tf.Tensor,
    epsilon: tf.Tensor,
) -> tf.Tensor:
    """Returns the weight after a step of `rms` (Krause et al. 2019, section 3).

    `root` is the root mean square S of the gradients, in the shape of the weight, and `mean` is the
    mean of S over all weights.
    """
    pull = tf.minimum(decay * root / mean, 1.0)  # decay * min(S / mean, 1 / decay)
    change = pull * (start - weight) - rate * gradient / (root + epsilon)
    return weight + change


def change_rms2019(
    weight: tf.Tensor,
    start: tf.Tensor,
    gradient: tf.Tensor,
    rate: tf.Tensor,
    decay: tf.Tensor,
    root_sum: tf.Tensor,
    epsilon: tf.Tensor,
) -> tf.Tensor:
    """Returns the weight after a step of `rms2019`.

    `root_sum` is the root of the sum of the squared gradients, in the shape of the weight.
    """
    pull = decay * root_sum
    change = pull * (start - weight) - rate * gradient / (root_sum + epsilon)
    return weight + change


def prepare_rule(
    config: DynamicConfig, statistics: GradientStatistics | None
) -> tuple[Rule, list[list[tf.Tensor]] | None]:
    """Returns the rule of a config, and for each weight its constants; `None` if it has none.

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
