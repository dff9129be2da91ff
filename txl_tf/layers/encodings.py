"""Position encodings: how attention knows the order of its keys.

The scores of every encoding have the form

    score(i, j) = ((q_i + u) . k_j + (q_i + v) . r_{i-j}) / sqrt(H)

The model asks an encoding for r, u and v, and for what to add to the inputs. An encoding has no
weights of its own: `txl_tf.config.encodings` declares them, and the model makes and holds them. The
product with r has the width W of v: if W < H, only the first W entries of q are used; if W > H, q
is padded with zeros. The paper's encoding has W = H and adds nothing to the inputs; the encodings
of its ablations differ.
"""

import pkgutil

from keras import ops

from txl_tf.config.encodings import ENCODINGS


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
    """The interface of the encodings, with what most of them have in common: u = 0, v = 0.

    Args:
        config: The `ModelConfig`.
    """

    def __init__(self, config):
        self.config = config

    def encode_embeddings(self, hidden):
        """Returns the embeddings, (B, T, D), plus what the encoding adds before dropout."""
        return hidden

    def encode_input(self, model, index, hidden):
        """Returns the input of a layer, (B, T, D), plus what the encoding adds."""
        return hidden

    def make_positions(self, model, n_keys, *, clamp_len=-1, training=False):
        """Returns r for the distances S-1, ..., 0, for each layer.

        Args:
            model: The model, which holds the weights.
            n_keys: The number S of distances.
            clamp_len: Larger distances count as equal to it; -1 for no limit.
            training: Whether to apply dropout.

        Returns:
            A list of tensors in the compute dtype: (S, N, W), with the width W of v; or (S, D), if
            each attention layer projects them.
        """
        raise NotImplementedError

    def get_biases(self, model, index):
        """Returns the biases of a layer in the compute dtype: u (N, H), and v (N, W)."""
        zeros = ops.zeros((self.config.n_head, self.config.d_head), model.compute_dtype)
        return zeros, zeros


class RelativeEncoding(Encoding):
    """The paper's encoding: W_{k,R} R, with sinusoids R of the distance; u and v are learned."""

    def make_positions(self, model, n_keys, *, clamp_len=-1, training=False):
        table = make_position_table(n_keys, self.config.d_model, clamp_len=clamp_len)
        table = model.input_dropout(ops.cast(table, model.compute_dtype), training=training)
        return [table] * self.config.n_layer

    def get_biases(self, model, index):
        part = index if self.config.untie_r else ...
        biases = (model.content_bias, model.position_bias)
        return tuple(slice_weight(bias, part, model.compute_dtype) for bias in biases)


def make_encoding(config):
    """Returns the encoding that a `ModelConfig` names."""
    # Imported on use, because txl_tf.lab depends on this module.
    return pkgutil.resolve_name(ENCODINGS[config.encoding].place)(config)


def fit_width(states, width):
    """Returns states (..., H) as (..., width): cut off, or with zeros appended."""
    n_missing = width - states.shape[-1]
    if n_missing <= 0:
        return states[..., :width] if n_missing else states
    return ops.pad(states, [(0, 0)] * (len(states.shape) - 1) + [(0, n_missing)])


def slice_weight(weight, part, dtype):
    """Returns a part of a weight in a dtype: the index of a layer, or `...` for all of it."""
    # Always a slice: the gradient of a variable that is passed to `keras.remat` counts twice.
    return ops.cast(ops.convert_to_tensor(weight)[part], dtype)
