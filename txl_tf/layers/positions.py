"""Sinusoidal encodings of distances."""

from keras import ops


def make_position_table(length, width, *, clamp_len=-1):
    """Returns the sinusoids R of the distances length-1, ..., 1, 0 (paper, section 3.3).

    Row s is `[sin(k f), cos(k f)]` for the distance k = length-1-s, with the frequencies
    f_i = 10000**(-2i / width). The halves are concatenated, not interleaved, as in the release.

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
