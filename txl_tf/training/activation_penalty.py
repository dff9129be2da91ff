"""Penalties on the last hidden states: activation and temporal activation regularisation."""

import tensorflow as tf


def compute_penalty(
    hidden: tf.Tensor, *, ar: float, tar: float, count: tf.Tensor | None = None
) -> tf.Tensor:
    """Returns what is added to the loss, () float32.

    That is `ar` times the mean square of the states, and `tar` times the mean square of their
    differences from one position to the next (Merity et al. 2017, section 4.6). Both take the
    states before dropout, as the authors of Transformer-XL do on Penn Treebank; AWD-LSTM takes
    those after dropout for the first, which with a rate p are larger by 1 / (1 - p) on average.

    Args:
        hidden: (B, T, D), the last hidden states without dropout, of the positions with a loss.
        ar: Factor of the activation regularisation.
        tar: Factor of the temporal activation regularisation, which needs two positions or more.
        count: () int32, the number of the first positions that count; `None` for all.

    References:
        Merity et al. 2017, https://arxiv.org/abs/1708.02182.
    """
    states = tf.cast(hidden, tf.float32)
    penalty = tf.zeros(())
    if ar:
        penalty += ar * _compute_mean(tf.square(states), count)
    if tar:
        squares = tf.square(states[:, 1:] - states[:, :-1])
        penalty += tar * _compute_mean(squares, None if count is None else count - 1)
    return penalty


def _compute_mean(values: tf.Tensor, count: tf.Tensor | None) -> tf.Tensor:
    """Returns the mean over the first `count` positions of (B, T, ...); 0 if there are none.

    `None` is for all positions.
    """
    if count is None:
        return tf.reduce_mean(values)
    by_position = tf.reduce_mean(values, axis=[0, *range(2, values.shape.rank)])
    is_counted = tf.range(values.shape[1]) < count
    divisor = tf.cast(tf.maximum(count, 1), tf.float32)
    return tf.reduce_sum(tf.where(is_counted, by_position, 0.0)) / divisor
