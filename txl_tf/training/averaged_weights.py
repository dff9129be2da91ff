"""Using the average of the weights, an EMA or a uniform mean, in place of the weights."""

import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf

from txl_tf.training.optimizers.base import Optimizer


@contextlib.contextmanager
def use_averaged_weights(optimizer: Optimizer) -> Iterator[None]:
    """Swaps the weights with their averages, and swaps them back afterwards, bit for bit.

    Variables are swapped one by one, so only one extra tensor is held at a time. Nothing happens
    if the optimizer keeps no averages.

    Args:
        optimizer: A built optimizer; the call must be outside any replica.
    """
    swapped = []
    try:
        for pair in optimizer.averaged_weights:
            _swap(*pair)
            swapped.append(pair)
        yield
    finally:
        for pair in swapped:
            _swap(*pair)


def _swap(one: keras.Variable, other: keras.Variable) -> None:
    kept = tf.identity(one)
    one.assign(other)
    other.assign(kept)
