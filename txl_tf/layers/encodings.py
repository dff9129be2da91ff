"""Position encodings: how attention knows the order of its keys (Dai et al. 2019, table 6).

The scores of every encoding have the form

    score(i, j) = ((q_i + u) . k_j + (q_i + v) . r_{i-j}) / sqrt(H)

An encoding is an object that the model asks for r, u and v, and for what it adds to the inputs. It
has no weights of its own: `txl_tf.config.encodings` declares them, and the model makes and holds
them. The product with r has the width of v: q is cut off, or zeros are appended to it.
"""

from keras import ops


def make_position_table(length, width, *, clamp_len=-1):
    """Returns the sinusoids R of the distances length-1, ..., 1, 0 (paper, section 3.3).

    Row s is `[sin(k f), cos(k f)]` for the distance k = length-1-s, with the frequencies
    f_i = 10000**(-2i / width). The halves are concatenated, not interleaved, as in the release.

    In the 2019 code: `positional_embedding`.

    Args:
        length: Number of keys S.
        width: Size D of a row, even.
        clamp_len: Larger distances are treated as equal to it; -1 for no limit.

    Returns:
        (S, D) float32.

    >>> make_position_table(3, 2).shape == (3, 2)
    True
    """
    distance = ops.arange(length - 1, -1, -1, dtype="float32")
    if clamp_len > 0:
        distance = ops.minimum(distance, float(clamp_len))
    exponent = ops.arange(0, width, 2, dtype="float32") / width
    angle = distance[:, None] * ops.power(10000.0, -exponent)[None, :]  # (S, D/2)
    return ops.concatenate([ops.sin(angle), ops.cos(angle)], axis=-1)


class Encoding:
    """The interface of the encodings, and what most of them have in common: u = 0, v = 0.

    Args:
        config: The `ModelConfig`.
    """

    # The weights that are biases, though they have several axes.
    bias_names: tuple[str, ...] = ()

    def __init__(self, config):
        self.config = config

    def encode_embeddings(self, hidden):
        """Returns the embeddings, (B, T, D), with what the encoding adds before the dropout."""
        return hidden

    def encode_input(self, model, index, hidden):
        """Returns the input of a layer, (B, T, D), with what the encoding adds."""
        return hidden

    def make_positions(self, model, n_keys, *, clamp_len=-1, training=False):
        """Returns r for the distances S-1, ..., 0, for each layer.

        Args:
            model: The model, which holds the weights.
            n_keys: The number S of distances.
            clamp_len: Larger distances count as equal to it; -1 for no limit.
            training: Whether to apply dropout.

        Returns:
            A list of (S, N, W) in the compute dtype, with the width W of v; or of (S, D), if each
            attention projects it.
        """
        raise NotImplementedError

    def get_biases(self, model, index):
        """Returns the biases of a layer in the compute dtype: u (N, H), and v (N, W)."""
        zeros = ops.zeros((self.config.n_head, self.config.d_head), model.compute_dtype)
        return zeros, zeros


class RelativeEncoding(Encoding):
    """The paper's encoding: r = W_r R of the sinusoids R of the distance; u and v are learned."""

    bias_names = ("content_bias", "position_bias")

    def make_positions(self, model, n_keys, *, clamp_len=-1, training=False):
        table = make_position_table(n_keys, self.config.d_model, clamp_len=clamp_len)
        table = model.input_dropout(ops.cast(table, model.compute_dtype), training=training)
        return [table] * self.config.n_layer

    def get_biases(self, model, index):
        part = index if self.config.untie_r else ...
        biases = (model.content_bias, model.position_bias)
        return tuple(_slice(bias, part, model.compute_dtype) for bias in biases)


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
        return _slice(model.distance_table, index, model.compute_dtype)


class BiasedShawEncoding(ShawEncoding):
    """Like `ShawEncoding`, with the bias u of each layer and a learned bias for each distance.

    The authors' PyTorch code of 2019 does this. The bias d of a distance is the last entry of r,
    and v has a 1 there, so W = H + 1.
    """

    bias_names = ("content_bias", "distance_bias")

    def get_table(self, model, index):
        bias = _slice(model.distance_bias, index, model.compute_dtype)
        return ops.concatenate([super().get_table(model, index), bias[..., None]], axis=-1)

    def get_biases(self, model, index):
        content_bias = _slice(model.content_bias, index, model.compute_dtype)
        pointer = ops.eye(1, self.config.d_head + 1, self.config.d_head, model.compute_dtype)
        return content_bias, ops.tile(pointer, (self.config.n_head, 1))


class _PlaceEncoding(Encoding):
    """Places are added to inputs, and scores have only the term (a): q . k. So W = 0.

    Places are counted from the beginning of the segment, so there can be no memory.
    """

    def make_positions(self, model, n_keys, *, clamp_len=-1, training=False):
        empty = ops.zeros((n_keys, self.config.n_head, 0), model.compute_dtype)
        return [empty] * self.config.n_layer

    def get_biases(self, model, index):
        zeros, _ = super().get_biases(model, index)
        return zeros, zeros[:, :0]


class SinusoidEncoding(_PlaceEncoding):
    """Sinusoids of the place are added to the embeddings (Vaswani et al. 2017)."""

    def encode_embeddings(self, hidden):
        places = make_position_table(ops.shape(hidden)[1], self.config.d_model)[::-1]
        return hidden + ops.cast(places, hidden.dtype)


class LearnedEncoding(_PlaceEncoding):
    """A learned row for each place and layer is added to its input (Al-Rfou et al. 2018)."""

    def encode_input(self, model, index, hidden):
        table = _slice(model.place_table, index, hidden.dtype)
        return hidden + table[: ops.shape(hidden)[1]]


_CLASSES = {
    "relative": RelativeEncoding,
    "shaw": ShawEncoding,
    "shaw_biased": BiasedShawEncoding,
    "sinusoid": SinusoidEncoding,
    "learned": LearnedEncoding,
}


def make_encoding(config):
    """Returns the encoding that a `ModelConfig` names."""
    return _CLASSES[config.encoding](config)


def fit_width(states, width):
    """Returns states (..., H) as (..., width): cut off, or with zeros appended."""
    n_missing = width - states.shape[-1]
    if n_missing <= 0:
        return states[..., :width] if n_missing else states
    return ops.pad(states, [(0, 0)] * (len(states.shape) - 1) + [(0, n_missing)])


def _slice(weight, part, dtype):
    # Always a slice: the gradient of a variable that is passed to `keras.remat` counts twice.
    return ops.cast(ops.convert_to_tensor(weight)[part], dtype)
