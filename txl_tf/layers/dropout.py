"""Dropout from a seed generator that all layers of a model share."""

import contextlib

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="txl_tf")
class Dropout(keras.layers.Layer):
    """Sets a share of the entries to zero in training and scales the others up.

    `keras.layers.Dropout` has one random state a layer. Here the layers of a model draw from one
    generator, so that a training loop can set the whole model's masks in one place: by step and
    replica, which makes a run repeatable and gives each replica masks of its own.

    Args:
        rate: share of the entries dropped, in [0, 1).
        seed: an integer, `None`, or a `keras.random.SeedGenerator` to share.

    Call arguments:
        inputs: tensor of any shape.
        training: whether to drop.

    Returns:
        Tensor of the shape and dtype of `inputs`.

    >>> Dropout(0.5, seed=1)(keras.ops.ones((2, 3)), training=False).shape == (2, 3)
    True

    References:
        Srivastava et al. 2014, Dropout: a simple way to prevent neural networks from overfitting.
    """

    def __init__(self, rate, *, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        self.seed = read_seed(seed)
        self.seed_generator = as_seed_generator(seed) if rate else None

    def call(self, inputs, training=False):
        if not training or not self.rate:
            return inputs
        return keras.random.dropout(inputs, self.rate, seed=self.seed_generator)

    def get_config(self):
        return super().get_config() | {"rate": self.rate, "seed": self.seed}


@keras.saving.register_keras_serializable(package="txl_tf")
class DropoutSeeds(keras.random.SeedGenerator):
    """A seed generator whose seeds can be drawn a second time.

    What is computed anew in the backward pass must drop what it dropped before. So its seeds are
    set aside once, by `reserve`, and drawn from there each time that it is computed, by
    `draw_from`, which changes no variable. They are the seeds that `next` would have given.

    >>> seeds = DropoutSeeds(3)
    >>> first = seeds.reserve(2)
    >>> with seeds.draw_from(first):
    ...     drawn = [ops.convert_to_numpy(seeds.next()).tolist() for _ in range(2)]
    >>> drawn, ops.convert_to_numpy(seeds.next()).tolist()
    ([[3, 0], [3, 1]], [3, 2])
    """

    _reserved = None  # the next seed within `draw_from`

    def reserve(self, count):
        """Returns the seed that is next, (2,) integers, and passes over `count` seeds."""
        first = self.state.value * 1  # a copy, as the variable changes
        self.state.assign(_advance(first, count))
        return first

    @contextlib.contextmanager
    def draw_from(self, first):
        """Has `next` give `first` and the seeds that follow it, in a `with` block."""
        self._reserved = first
        try:
            yield
        finally:
            self._reserved = None

    def next(self, ordered=True):
        """Returns a seed, (2,) integers, and passes over it."""
        if self._reserved is None:
            return super().next(ordered)
        seed, self._reserved = self._reserved, _advance(self._reserved, 1)
        return seed


def _advance(seed, count):
    return seed + ops.convert_to_tensor([0, count], seed.dtype)


def as_seed_generator(seed):
    """Returns `seed` itself if it is a `keras.random.SeedGenerator`, else one that starts there."""
    if isinstance(seed, keras.random.SeedGenerator):
        return seed
    return keras.random.SeedGenerator(seed)


def read_seed(seed):
    """Returns what the config of a layer keeps of its seed: an integer or `None`.

    Of a generator that layers share, each keeps the seed that it started from.
    """
    if isinstance(seed, keras.random.SeedGenerator):
        return seed.get_config()["seed"]
    return seed
