"""Dropout from a seed generator that all layers of a model share."""

import keras


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
        self.seed_generator = as_seed_generator(seed) if rate else None

    def call(self, inputs, training=False):
        if not training or not self.rate:
            return inputs
        return keras.random.dropout(inputs, self.rate, seed=self.seed_generator)

    def get_config(self):
        return super().get_config() | {"rate": self.rate}


def as_seed_generator(seed):
    """Returns `seed` itself if it is a `keras.random.SeedGenerator`, else one that starts there."""
    if isinstance(seed, keras.random.SeedGenerator):
        return seed
    return keras.random.SeedGenerator(seed)
