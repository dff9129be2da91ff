"""One layer of the decoder."""

import keras

from txl_tf.layers.dropout import Dropout, as_seed_generator, read_seed
from txl_tf.layers.feed_forward import FeedForward
from txl_tf.layers.fused.for_xla import matmul_rows
from txl_tf.layers.fused.fused_dense import add_and_normalize
from txl_tf.layers.packed_kernel import PackedKernel
from txl_tf.layers.relative_attention import RelativeAttention


@keras.saving.register_keras_serializable(package="txl_tf")
class DecoderLayer(keras.layers.Layer):
    """Relative attention and a feed-forward network, each with dropout, residual and LayerNorm.

    The normalization follows the residual ("post-norm"), as in the last equations of section 3.3
    of the paper. The layer reads the memory but does not change it.

    In the 2019 code: `rel_multihead_attn` followed by `positionwise_FF`.

    Args:
        n_head: Number of heads N.
        d_head: Size of a head H.
        d_inner: Size of the inner layer of the feed-forward network.
        dropout: Dropout rate of the outputs of both parts, and inside the feed-forward network.
        dropatt: Dropout rate of the attention weights.
        qkv_dropout: Dropout rate of queries, keys and values.
        is_locked: Whether all positions of a row share one dropout mask, except in the dropout of
            the attention weights.
        has_empty: Whether word dropout precedes the layer, so that some states may be zeros. In
            training, these then receive no gradient; see `add_and_normalize`.
        layer_norm_epsilon: Added to the variance in LayerNorm; 1e-12 in the 2019 release.
        projects_positions: As in `RelativeAttention`.
        kernel_initializer: Initializer of all kernels.
        seed: Dropout seed: an integer, `None` or a `keras.random.SeedGenerator` to share.

    Call arguments:
        hidden: (B, T, D), the segment.
        memory: (B, M, D), the inputs of this layer before the segment.
        positions: As in `RelativeAttention`.
        content_bias: (N, H), u.
        position_bias: (N, W), v.
        mask: (T, S) or (B, 1, T, S) bool, true where a query may see a key.
        training: Whether to apply dropout.

    Returns:
        (B, T, D) in the dtype of `hidden`.

    >>> from txl_tf.layers import make_attention_mask, make_position_table
    >>> layer, zeros = DecoderLayer(n_head=2, d_head=5, d_inner=8), keras.ops.zeros
    >>> layer(zeros((3, 4, 6)), zeros((3, 7, 6)), make_position_table(11, 6), zeros((2, 5)),
    ...       zeros((2, 5)), make_attention_mask(4, 7)).shape == (3, 4, 6)
    True

    References:
        Dai et al. 2019, https://arxiv.org/abs/1901.02860, section 3.3.
    """

    def __init__(
        self,
        *,
        n_head,
        d_head,
        d_inner,
        dropout=0.0,
        dropatt=0.0,
        qkv_dropout=0.0,
        is_locked=False,
        has_empty=False,
        layer_norm_epsilon=1e-12,
        projects_positions=True,
        kernel_initializer=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.arguments = {
            "n_head": n_head,
            "d_head": d_head,
            "d_inner": d_inner,
            "dropout": dropout,
            "dropatt": dropatt,
            "qkv_dropout": qkv_dropout,
            "is_locked": is_locked,
            "has_empty": has_empty,
            "layer_norm_epsilon": layer_norm_epsilon,
            "projects_positions": projects_positions,
            "seed": read_seed(seed),
        }
        self.has_empty = has_empty
        self.kernel_initializer = keras.initializers.get(kernel_initializer or "glorot_uniform")
        shared = {
            "kernel_initializer": self.kernel_initializer,
            "seed": as_seed_generator(seed),
            "dtype": self.dtype_policy,
        }
        self.attention = RelativeAttention(
            n_head=n_head,
            d_head=d_head,
            dropatt=dropatt,
            qkv_dropout=qkv_dropout,
            is_locked=is_locked,
            projects_positions=projects_positions,
            name="attention",
            **shared,
        )
        self.feed_forward = FeedForward(
            d_inner=d_inner, dropout=dropout, is_locked=is_locked, name="feed_forward", **shared
        )
        self.dropout = Dropout(
            dropout, is_locked=is_locked, seed=shared["seed"], dtype=self.dtype_policy
        )
        self.attention_norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_epsilon, dtype=self.dtype_policy, name="attention_norm"
        )
        self.feed_forward_norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_epsilon, dtype=self.dtype_policy, name="feed_forward_norm"
        )

    @property
    def n_draws(self):
        """The number of dropout masks that a call in training draws."""
        attention = self.attention
        rates = (attention.qkv_dropout.rate, attention.dropout.rate, *[self.dropout.rate] * 3)
        return sum(map(bool, rates))

    def build(self, hidden_shape, *_):
        for part in (
            self.attention,
            self.attention_norm,
            self.feed_forward,
            self.feed_forward_norm,
        ):
            part.build(hidden_shape)

    def compute_output_shape(self, hidden_shape):
        return hidden_shape

    def call(
        self,
        hidden,
        memory,
        positions,
        content_bias,
        position_bias,
        mask,
        training=False,
    ):
        biases = (content_bias, position_bias)
        change = self.attention(hidden, memory, positions, *biases, mask, training=training)
        return self.finish(hidden, change, training=training)

    def finish(self, hidden, change, training=False, multiply=PackedKernel.multiply):
        """Returns the output of the layer, (B, T, D), given its input and the attention's output.

        `multiply` computes the products with packed kernels; see `matmul_rows`.
        """
        has_empty = training and self.has_empty
        # The masks are drawn in the order of the operations.
        dropout = self.dropout.draw(training)
        hidden = add_and_normalize(
            hidden, change, None, self.attention_norm, has_empty=has_empty, **dropout
        )
        inner = self.feed_forward.compute_inner(hidden, training=training, multiply=multiply)
        outer = self.feed_forward.outer  # whose bias is added below, in float32
        dropout = self.dropout.draw(training)
        return add_and_normalize(
            hidden,
            matmul_rows(inner, outer.kernel, multiply),
            outer.bias,
            self.feed_forward_norm,
            has_empty=has_empty,
            **dropout,
        )

    def get_config(self):
        return (
            super().get_config()
            | self.arguments
            | {"kernel_initializer": keras.initializers.serialize(self.kernel_initializer)}
        )
