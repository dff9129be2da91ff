"""One layer of the decoder."""

import keras

from txl_tf.layers.dropout import Dropout, as_seed_generator, read_seed
from txl_tf.layers.feed_forward import FeedForward
from txl_tf.layers.relative_attention import RelativeAttention


@keras.saving.register_keras_serializable(package="txl_tf")
class DecoderLayer(keras.layers.Layer):
    """Relative attention and a feed-forward network, each with dropout, residual and LayerNorm.

    The normalisation comes after the residual ("post-norm"), as in the paper (section 3.3, last
    equations). Masks and memory go to the attention; the layer does not change the memory.

    Args:
        n_head: number of heads N.
        d_head: width of a head H.
        d_inner: inner width of the feed-forward network.
        dropout: rate on the outputs of both parts and inside the feed-forward network.
        dropatt: rate on the attention weights.
        layer_norm_epsilon: added to the variance by LayerNorm; 1e-12 is the release's.
        kernel_initializer: of all kernels.
        seed: of the dropout: an integer, `None` or a `keras.random.SeedGenerator`.

    Call arguments:
        hidden: (B, T, D) the segment.
        memory: (B, M, D) inputs of this layer before the segment.
        positions: (S, D) from `make_position_table`, S = M + T.
        content_bias: (N, H) u.
        position_bias: (N, H) v.
        mask: (T, S) bool, true where a query sees a key.
        same_document: (B, T, S) bool, true where a key is of the query's document; `None`: all.
        training: whether to drop.

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
        layer_norm_epsilon=1e-12,
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
            "layer_norm_epsilon": layer_norm_epsilon,
            "seed": read_seed(seed),
        }
        self.kernel_initializer = keras.initializers.get(kernel_initializer or "glorot_uniform")
        shared = {
            "kernel_initializer": self.kernel_initializer,
            "seed": as_seed_generator(seed),
            "dtype": self.dtype_policy,
        }
        self.attention = RelativeAttention(
            n_head=n_head, d_head=d_head, dropatt=dropatt, name="attention", **shared
        )
        self.feed_forward = FeedForward(
            d_inner=d_inner, dropout=dropout, name="feed_forward", **shared
        )
        self.dropout = Dropout(dropout, seed=shared["seed"], dtype=self.dtype_policy)
        self.attention_norm = self._make_norm("attention_norm")
        self.feed_forward_norm = self._make_norm("feed_forward_norm")

    def _make_norm(self, name):
        return keras.layers.LayerNormalization(
            epsilon=self.arguments["layer_norm_epsilon"], dtype=self.dtype_policy, name=name
        )

    @property
    def n_draws(self):
        """How many masks of dropout a call in training draws."""
        rates = self.arguments["dropout"], self.arguments["dropatt"]
        return 3 * bool(rates[0]) + bool(rates[1])

    def build(self, hidden_shape, *_):
        for part in (
            self.attention,
            self.attention_norm,
            self.feed_forward,
            self.feed_forward_norm,
        ):
            part.build(hidden_shape)

    def call(
        self,
        hidden,
        memory,
        positions,
        content_bias,
        position_bias,
        mask,
        same_document=None,
        training=False,
    ):
        biases = (content_bias, position_bias)
        attended = self.attention(
            hidden, memory, positions, *biases, mask, same_document, training=training
        )
        return self.apply_feed_forward(hidden, attended, training=training)

    def apply_feed_forward(self, hidden, attended, training=False):
        """Returns what comes out of the layer, (B, T, D), given what its attention returned."""
        hidden = self.attention_norm(hidden + self.dropout(attended, training=training))
        changed = self.feed_forward(hidden, training=training)
        return self.feed_forward_norm(hidden + self.dropout(changed, training=training))

    def get_config(self):
        return (
            super().get_config()
            | self.arguments
            | {"kernel_initializer": keras.initializers.serialize(self.kernel_initializer)}
        )
