"""Dropout with masks that are a hash of a seed and the index of each entry."""

import contextlib

import keras
from keras import ops

from txl_tf.layers.custom_gradient import custom_gradient
from txl_tf.layers.fused.fusion import chain

WEYL_STEP = 0x9E3779B9  # 2**32 over the golden ratio
MULTIPLIERS = (0x7FEB352D, 0x846CA68B)


class _BaseDropout(keras.layers.Layer):
    """Base class of layers that drop a fraction of their input at random, and have no weights."""

    def __init__(self, rate, *, seed=None, **kwargs):
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ValueError(f"`rate` must be in [0, 1). Received: rate={rate}")
        self.rate = rate
        self.seed = read_seed(seed)
        self.seed_generator = as_seed_generator(seed) if rate else None
        self.built = True  # there are no weights

    def build(self, inputs_shape):
        """Does nothing; `summary` shows the shape."""

    def compute_output_shape(self, inputs_shape):
        return inputs_shape

    def get_config(self):
        return super().get_config() | {"rate": self.rate, "seed": self.seed}


@keras.saving.register_keras_serializable(package="txl_tf")
class Dropout(_BaseDropout):
    """Sets a fraction of the entries to zero in training and scales up the others.

    Each `keras.layers.Dropout` has its own random state. Here all layers of a model share one
    generator, so a training loop can set the masks of the whole model in one place, by step and
    replica: runs are reproducible, and each replica has different masks. `make_keep_mask` computes
    the masks, so every Keras backend draws the same ones.

    Locked dropout (also called variational) drops the same entries at all positions of a row: it
    has one mask for the axis before the last.

    Args:
        rate: Fraction of the entries to drop, in [0, 1).
        is_locked: Whether all positions have the same mask.
        seed: An integer, `None`, or a `keras.random.SeedGenerator` to share.

    Call arguments:
        inputs: A tensor of any shape; (..., T, D) if the mask is locked.
        training: Whether to drop entries.

    Returns:
        A tensor of the shape and dtype of `inputs`.

    >>> Dropout(0.5, seed=1)(keras.ops.ones((2, 3)), training=False).shape == (2, 3)
    True

    References:
        Srivastava et al. 2014, Dropout: a simple way to prevent neural networks from overfitting.
        Gal and Ghahramani 2016, A theoretically grounded application of dropout in recurrent
        neural networks, https://arxiv.org/abs/1512.05287 (locked masks).
    """

    def __init__(self, rate, *, is_locked=False, seed=None, **kwargs):
        super().__init__(rate, seed=seed, **kwargs)
        self.is_locked = is_locked

    def draw(self, training=True):
        """Returns what defines the next mask, for operations that apply dropout themselves.

        This is a dict with `seed`, `rate` and `is_locked`; it is empty without dropout.
        """
        if not training or not self.rate:
            return {}
        return {
            "seed": self.seed_generator.next(),
            "rate": self.rate,
            "is_locked": self.is_locked,
        }

    def call(self, inputs, training=False):
        rule = self.draw(training)
        if not rule:
            return inputs
        seed = rule.pop("seed")

        @custom_gradient
        def drop(inputs, seed):
            def compute_gradients(upstream):  # computes the mask again
                return _drop(upstream, seed, **rule), None

            return _drop(inputs, seed, **rule), compute_gradients

        return drop(inputs, seed)

    def get_config(self):
        return super().get_config() | {"is_locked": self.is_locked}


@keras.saving.register_keras_serializable(package="txl_tf")
class WordDropout(_BaseDropout):
    """Drops words in training: all positions that hold a dropped word become zeros.

    This drops rows of the embedding table and scales up the others (Merity et al. 2017, section
    4.3). All rows of a batch share one mask. The softmax keeps all rows of the table.

    Args:
        rate: Fraction of the words to drop, in [0, 1).
        seed: An integer, `None`, or a `keras.random.SeedGenerator` to share.

    Call arguments:
        embedded: (B, T, D), the embeddings.
        ids: (B, T) integers, their words.
        training: Whether to drop words.

    Returns:
        (B, T, D) in the dtype of `embedded`.

    >>> WordDropout(0.5, seed=1)(ops.ones((2, 3, 4)), ops.zeros((2, 3), "int32")).shape == (2, 3, 4)
    True

    References:
        Merity et al. 2017, Regularizing and optimizing LSTM language models,
        https://arxiv.org/abs/1708.02182.
    """

    def call(self, embedded, ids, training=False):
        if not training or not self.rate:
            return embedded
        keep = make_index_mask(ids, self.rate, self.seed_generator.next())[..., None]
        scaled = ops.cast(embedded, "float32") * (1 / (1 - self.rate))
        return ops.cast(ops.where(keep, scaled, 0), embedded.dtype)


@chain
def _drop(inputs, seed, *, rate, is_locked):
    # In float32: bfloat16 would round the scale.
    dropped = drop_entries(ops.cast(inputs, "float32"), seed, rate, is_locked)
    return ops.cast(dropped, inputs.dtype)


def drop_entries(inputs, seed, rate, is_locked):
    """Returns float32 inputs with dropout, as a part of a chain; `seed` may be `None` for none."""
    if seed is None:
        return inputs
    shape = list(ops.shape(inputs))
    if is_locked:
        shape[-2] = 1
    keep = make_keep_mask(shape, rate, seed)
    return ops.where(keep, inputs * (1 / (1 - rate)), 0)


def make_keep_mask(shape, rate, seed):
    """Returns the mask of the entries to keep: a function of the seed and each entry's index.

    The decision about an entry is a hash of its index in row-major order: a Weyl sequence, then two
    rounds of xor-shift and multiply with the constants of Wellons' `lowbias32`, with a key from the
    seed before each round. These are element-wise integer operations, which a compiler fuses into
    the operation that uses the mask. Counter-based generators such as Philox, which are made for
    long streams, cost hundreds of times as much in compiled graphs on CPUs.

    Args:
        shape: Shape of the mask: integers, or () integer tensors where a graph does not know them.
        rate: Fraction of the entries to drop, in [0, 1), exact to 2**-32.
        seed: (2,) integers, of which the lowest 32 bits are used.

    Returns:
        A bool tensor of `shape`. The mask repeats after 2**32 entries.

    >>> mask = make_keep_mask((2, 3), 0.5, ops.convert_to_tensor([1, 2]))
    >>> ops.convert_to_numpy(mask).tolist()
    [[False, False, False], [True, False, True]]

    References:
        Wellons 2018, Prospecting for hash functions, https://nullprogram.com/blog/2018/07/31/.
    """
    first_key, second_key = make_keys(seed)
    return _decide(_make_weyl_sequence(shape, first_key), second_key, rate)


def make_index_mask(indices, rate, seed):
    """Returns the entries of a mask (V,) from `make_keep_mask` at given indices only.

    The indices are integers in [0, V) of any shape, which is the shape of the result.
    """
    first_key, second_key = make_keys(seed)
    terms = ops.cast(indices, "uint32") * _constant(WEYL_STEP)
    return _decide(first_key + terms, second_key, rate)


def _decide(bits, second_key, rate):
    """Returns whether to keep each entry, given its term of the Weyl sequence."""
    bits = ops.bitwise_xor(bits, ops.bitwise_right_shift(bits, _constant(16)))
    bits = bits * _constant(MULTIPLIERS[0])
    bits = ops.bitwise_xor(bits, ops.bitwise_right_shift(bits, _constant(15)))
    bits = ops.bitwise_xor(bits, second_key) * _constant(MULTIPLIERS[1])
    # The highest bits decide. They are mixed best, so the last xor-shift of the hash is not needed.
    return bits >= _constant(round(rate * 2**32))


def make_keys(seed):
    """Returns two keys, () uint32 each, from a seed (2,)."""
    seed = ops.cast(seed, "uint32")
    first, second = seed[0], seed[1]
    base = _mix(first + _constant(WEYL_STEP))
    first_key = _mix(ops.bitwise_xor(base, second))  # for a given `first`, a bijection of `second`
    return first_key, _mix(first_key + base)


def _mix(bits):
    """Returns a hash of 32 bits, a bijection."""
    for shift, multiplier in ((16, MULTIPLIERS[0]), (15, MULTIPLIERS[1])):
        bits = ops.bitwise_xor(bits, ops.bitwise_right_shift(bits, _constant(shift)))
        bits = bits * _constant(multiplier)
    return ops.bitwise_xor(bits, ops.bitwise_right_shift(bits, _constant(16)))


def _make_weyl_sequence(shape, start):
    """Returns `start` plus `WEYL_STEP` times the row-major index of each entry, modulo 2**32."""
    # The sum begins with `start`, which is known only at run time: from the indices alone, a
    # compiler would make a constant of the size of the mask.
    step, total = _constant(WEYL_STEP), start
    for axis in reversed(range(len(shape))):
        terms = ops.cast(ops.arange(shape[axis], dtype="int32"), "uint32") * step
        total = total + ops.reshape(terms, (-1, *[1] * (len(shape) - 1 - axis)))
        step = step * ops.cast(shape[axis], "uint32")
    return total


def _constant(number):
    return ops.convert_to_tensor(number, "uint32")


@keras.saving.register_keras_serializable(package="txl_tf")
class DropoutSeeds(keras.random.SeedGenerator):
    """A seed generator whose seeds can be drawn a second time.

    Gradient checkpointing computes layers again in the backward pass, with the same dropout masks.
    `reserve` sets their seeds aside once, and `draw_from`, which changes no variable, draws them
    in each computation. They are the seeds that `next` would have returned.

    >>> seeds = DropoutSeeds(3)
    >>> first = seeds.reserve(2)
    >>> with seeds.draw_from(first):
    ...     drawn = [ops.convert_to_numpy(seeds.next()).tolist() for _ in range(2)]
    >>> drawn, ops.convert_to_numpy(seeds.next()).tolist()
    ([[3, 0], [3, 1]], [3, 2])
    """

    _reserved = None  # the next seed within `draw_from`

    def reserve(self, count):
        """Returns the next seed, (2,) integers, and skips `count` seeds."""
        first = self.state.value * 1  # a copy, as the variable changes
        self.state.assign(_advance(first, count))
        return first

    @contextlib.contextmanager
    def draw_from(self, first):
        """Makes `next` return `first` and the seeds that follow it, within a `with` block."""
        self._reserved = first
        try:
            yield
        finally:
            self._reserved = None

    def next(self, ordered=True):
        """Returns the next seed, (2,) integers, and advances the state."""
        if self._reserved is None:
            return super().next(ordered)
        seed, self._reserved = self._reserved, _advance(self._reserved, 1)
        return seed


def _advance(seed, count):
    return seed + ops.convert_to_tensor([0, count], seed.dtype)


def as_seed_generator(seed):
    """Returns `seed` if it is a `keras.random.SeedGenerator`, else a new one with this seed."""
    if isinstance(seed, keras.random.SeedGenerator):
        return seed
    return keras.random.SeedGenerator(seed)


def read_seed(seed):
    """Returns the seed that a layer's config stores: an integer, or `None`.

    For a shared generator, that is the seed from which the generator started.
    """
    if isinstance(seed, keras.random.SeedGenerator):
        return seed.get_config()["seed"]
    return seed
