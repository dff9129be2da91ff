"""The moving averages of the weights in the place of the weights."""

import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf

from txl_tf.training.optimizer import Optimizer


@contextlib.contextmanager
def use_averages(optimizer: Optimizer) -> Iterator[None]:
    """Lets the weights be their averages; afterwards they are what they were, to the bit.

    They change places one by one, so that no more than one tensor is held besides. Where the
    optimizer keeps no averages, nothing happens.

    Args:
        optimizer: built; called outside of any replica.
    """
    exchanged = []
    try:
        for weight, average in optimizer.averages:
            _exchange(weight, average)
            exchanged.append((weight, average))
        yield
    finally:
        for weight, average in exchanged:
            _exchange(weight, average)


def _exchange(one: keras.Variable, other: keras.Variable) -> None:
    kept = tf.identity(one)
    one.assign(other)
    other.assign(kept)
