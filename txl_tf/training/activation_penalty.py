"""Penalties on the last hidden states: activation and temporal activation regularization."""

import tensorflow as tf


def compute_penalty(hidden: tf.Tensor, *, ar: float, tar: float) -> tf.Tensor:
    """Returns what is added to the loss, () float32.

    That is `ar` times the mean square of the states, and `tar` times the mean square of their
    differences from one position to the next (Merity et al. 2017, section 4.6). Both take the
    states before dropout, as the authors of Transformer-XL do on Penn Treebank; AWD-LSTM takes
    those after dropout for the first, which with a rate p are larger by 1 / (1 - p) on average.

    Args:
        hidden: (B, T, D), the last hidden states without dropout, of the positions with a loss.
        ar: Factor of the activation regularization.
        tar: Factor of the temporal activation regularization, which needs a T of 2 or more.

    References:
        Merity et al. 2017, https://arxiv.org/abs/1708.02182.
    """
    states = tf.cast(hidden, tf.float32)
    penalty = tf.zeros(())
    if ar:
        penalty += ar * tf.reduce_mean(tf.square(states))
    if tar:
        penalty += tar * tf.reduce_mean(tf.square(states[:, 1:] - states[:, :-1]))
    return penalty
