"""The layers of Transformer-XL, in `keras.ops`: they run on every backend of Keras."""

from txl_tf.layers.adaptive_embedding import AdaptiveEmbedding
from txl_tf.layers.adaptive_softmax import AdaptiveSoftmax
from txl_tf.layers.attention import left_shift, shift_padded
from txl_tf.layers.decoder_layer import DecoderLayer
from txl_tf.layers.dropout import Dropout, DropoutSeeds, WordDropout
from txl_tf.layers.encodings import make_encoding, make_position_table
from txl_tf.layers.feed_forward import FeedForward
from txl_tf.layers.memory import count_before, make_attention_mask, update_memory
from txl_tf.layers.relative_attention import RelativeAttention

__all__ = [
    "AdaptiveEmbedding",
    "AdaptiveSoftmax",
    "DecoderLayer",
    "Dropout",
    "DropoutSeeds",
    "FeedForward",
    "RelativeAttention",
    "WordDropout",
    "count_before",
    "left_shift",
    "make_attention_mask",
    "make_encoding",
    "make_position_table",
    "shift_padded",
    "update_memory",
]
