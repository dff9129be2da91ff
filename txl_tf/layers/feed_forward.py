"""The position-wise feed-forward network."""

import keras
from keras import ops

from txl_tf.layers.dropout import Dropout, as_seed_generator, read_seed
from txl_tf.layers.fused.for_xla import matmul_rows
from txl_tf.layers.fused.fused_dense import rectify
from txl_tf.layers.packed_kernel import PackedKernel, add_kernel


@keras.saving.register_keras_serializable(package="txl_tf")
class FeedForward(keras.layers.Layer):
    """Two dense layers with a ReLU between them, applied to each position separately.

    Vaswani et al. 2017, section 3.3: `relu(x W_1 + b_1) W_2 + b_2`, with dropout on the inner
    layer.

    In the 2019 code: `positionwise_FF`, whose last dropout, residual and normalization
    `DecoderLayer` applies.

    Args:
        d_inner: Size of the inner layer.
        dropout: Dropout rate of the inner layer.
        is_locked: Whether all positions of a row share one dropout mask.
        kernel_initializer: Initializer of both kernels; biases start at 0.
        seed: Dropout seed: an integer, `None` or a `keras.random.SeedGenerator` to share.

    Call arguments:
        hidden: (B, T, D).
        training: Whether to apply dropout.

    Returns:
        (B, T, D) in the dtype of `hidden`.

    >>> FeedForward(d_inner=7)(keras.ops.zeros((2, 3, 5))).shape == (2, 3, 5)
    True

    References:
        Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.3.
    """

    def __init__(
        self,
        *,
        d_inner,
        dropout=0.0,
        is_locked=False,
        kernel_initializer=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.d_inner = d_inner
        self.seed = read_seed(seed)
        self.kernel_initializer = keras.initializers.get(kernel_initializer or "glorot_uniform")
        self.dropout = Dropout(
            dropout, is_locked=is_locked, seed=as_seed_generator(seed), dtype=self.dtype_policy
        )

    def build(self, hidden_shape):
        shared = {"kernel_initializer": self.kernel_initializer, "dtype": self.dtype_policy}
        self.inner = _Dense(self.d_inner, name="inner", **shared)
        self.outer = _Dense(hidden_shape[-1], name="outer", **shared)
        self.inner.build(hidden_shape)
        self.outer.build((*hidden_shape[:-1], self.d_inner))

    def call(self, hidden, training=False):
        return self.outer(self.compute_inner(hidden, training=training))

    def compute_inner(self, hidden, training=False, multiply=PackedKernel.multiply):
        """Returns the inner layer with dropout, (B, T, d_inner)."""
        products = matmul_rows(hidden, self.inner.kernel, multiply)
        return rectify(products, self.inner.bias, **self.dropout.draw(training))

    def get_config(self):
        return super().get_config() | {
            "d_inner": self.d_inner,
            "dropout": self.dropout.rate,
            "is_locked": self.dropout.is_locked,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "seed": self.seed,
        }


class _Dense(keras.layers.Layer):
    """A dense layer whose weights stay float32 until they are used.

    Keras casts weights only within the call of a layer, but `keras.remat` also computes outside it.
    """

    def __init__(self, units, *, kernel_initializer, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.kernel_initializer = kernel_initializer

    def build(self, input_shape):
        shape = (input_shape[-1], self.units)
        self.kernel = add_kernel(self, "kernel", shape, self.kernel_initializer, autocast=False)
        self.bias = self.add_weight(
            name="bias", shape=(self.units,), initializer="zeros", autocast=False
        )

    def call(self, inputs):
        return matmul_rows(inputs, self.kernel) + ops.cast(self.bias, inputs.dtype)
