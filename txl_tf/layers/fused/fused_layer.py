"""A decoder layer as matrix products and the chains of element-wise operations between them.

It computes what `DecoderLayer` defines, faster: see `txl_tf.layers.fused.fusion`. The weights are
those of the layer, and so are the dropout masks.
"""

from keras import ops

from txl_tf.layers.fused import fused_attention
from txl_tf.layers.fused.fused_dense import add_and_normalize, rectify
from txl_tf.layers.fused.fusion import get_engine
from txl_tf.layers.fused.matrix_products import matmul_rows


def run_layer(layer, hidden, memory, positions, content_bias, position_bias, visibility):
    """Returns the output of a layer in training, with dropout, (B, T, D).

    The arguments are those of a call of the `DecoderLayer`, with mask and documents in a
    `Visibility`. No gradient flows into the memory.
    """
    attention = layer.attention
    d_heads = attention.n_head * attention.d_head
    kernel = ops.cast(attention.qkv_kernel, hidden.dtype)
    segment = matmul_rows(hidden, kernel)
    old = matmul_rows(ops.stop_gradient(memory), kernel[:, d_heads:])
    segment, old = attention.drop_projections(segment, old, training=True)
    distance_keys = project_distances(layer, positions)
    rate = attention.dropout.rate
    seed = attention.dropout.seed_generator.next() if rate else None
    attend = get_engine().attend or fused_attention.attend
    biases = (content_bias, position_bias)
    attended = attend(segment, old, distance_keys, *biases, visibility, seed, rate=rate)
    return finish_layer(layer, hidden, attended, training=True)


def project_distances(layer, positions):
    """Returns the products of the distances by head, after a row of zeros: (N, 1 + S, W)."""
    distance_keys = layer.attention.project_positions(positions)  # (S, N, W)
    return ops.pad(ops.transpose(distance_keys, (1, 0, 2)), [(0, 0), (1, 0), (0, 0)])


def finish_layer(layer, hidden, attended, *, training=False):
    """Returns the output of a layer, (B, T, D), given what its heads attended to, (B, T, N H)."""
    network = layer.feed_forward
    changed = matmul_rows(attended, layer.attention.o_kernel)
    # The masks are drawn in the order of the layer.
    dropout = _draw(layer.dropout, training)
    norm, has_empty = layer.attention_norm, training and layer.has_empty
    hidden = add_and_normalize(hidden, changed, None, norm, has_empty=has_empty, **dropout)
    inner = matmul_rows(hidden, network.inner.kernel)
    inner = rectify(inner, network.inner.bias, **_draw(network.dropout, training))
    changed = matmul_rows(inner, network.outer.kernel)
    dropout = _draw(layer.dropout, training)
    norm, bias = layer.feed_forward_norm, network.outer.bias
    return add_and_normalize(hidden, changed, bias, norm, has_empty=has_empty, **dropout)


def _draw(dropout, training):
    """Returns what defines the next mask of a `Dropout` layer; empty without dropout."""
    if not training or not dropout.rate:
        return {}
    seed = dropout.seed_generator.next()
    return {"seed": seed, "rate": dropout.rate, "is_locked": dropout.is_locked}
