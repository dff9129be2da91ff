"""The other position encodings of the paper's ablations (Dai et al. 2019, table 6).

`txl_tf.layers.encodings` says what an encoding is; `txl_tf.config.encodings` names these classes.
"""

from keras import ops

from txl_tf.layers.encodings import Encoding, make_position_table, slice_weight


class ShawEncoding(Encoding):
    """r is a learned row for each distance, head and layer (Shaw et al. 2018); u = v = 0.

    It has the terms (a) and (b) of the paper's section 3.3. Distances from K - 1 on share a row.
    """

    def make_positions(self, model, n_keys, *, clamp_len=-1, training=False):
        largest = self.config.n_positions - 1
        if clamp_len > 0:
            largest = min(largest, clamp_len)
        rows = ops.minimum(ops.arange(n_keys - 1, -1, -1, dtype="int32"), largest)
        return [
            ops.take(self.get_table(model, index), rows, axis=0)
            for index in range(self.config.n_layer)
        ]

    def get_table(self, model, index):
        """Returns the rows of a layer, (K, N, W), in the compute dtype."""
        return slice_weight(model.distance_table, index, model.compute_dtype)


class BiasedShawEncoding(ShawEncoding):
    """Like `ShawEncoding`, with the bias u of each layer and a learned bias for each distance.

    The authors' PyTorch code of 2019 does this. The bias d of a distance is the last entry of r,
    and v has a 1 there, so W = H + 1.
    """

    def get_table(self, model, index):
        bias = slice_weight(model.distance_bias, index, model.compute_dtype)
        return ops.concatenate([super().get_table(model, index), bias[..., None]], axis=-1)

    def get_biases(self, model, index):
        content_bias = slice_weight(model.content_bias, index, model.compute_dtype)
        pointer = ops.eye(1, self.config.d_head + 1, self.config.d_head, model.compute_dtype)
        return content_bias, ops.tile(pointer, (self.config.n_head, 1))


class _PlaceEncoding(Encoding):
    """Absolute positions are added to inputs, and scores have only the term (a), q . k: W = 0.

    Positions are counted from the beginning of the segment, so there can be no memory.
    """

    def make_positions(self, model, n_keys, *, clamp_len=-1, training=False):
        empty = ops.zeros((n_keys, self.config.n_head, 0), model.compute_dtype)
        return [empty] * self.config.n_layer

    def get_biases(self, model, index):
        zeros, _ = super().get_biases(model, index)
        return zeros, zeros[:, :0]


class SinusoidEncoding(_PlaceEncoding):
    """Sinusoids of the position are added to the embeddings (Vaswani et al. 2017)."""

    def encode_embeddings(self, hidden):
        places = make_position_table(ops.shape(hidden)[1], self.config.d_model)[::-1]
        return hidden + ops.cast(places, hidden.dtype)


class LearnedEncoding(_PlaceEncoding):
    """A learned row for each position and layer is added to its input (Al-Rfou et al. 2018)."""

    def encode_input(self, model, index, hidden):
        table = slice_weight(model.place_table, index, hidden.dtype)
        return hidden + table[: ops.shape(hidden)[1]]
