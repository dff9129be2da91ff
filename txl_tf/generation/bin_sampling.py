"""Sampling from an adaptive softmax that computes only the bins that it needs."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from txl_tf.generation.sampling import BANNED_LOGIT, SamplingTensors, find_slots


class _Found(NamedTuple):
    """The tokens found in the bins searched so far."""

    drawn: tf.Tensor  # (B,) int32, the token that the random number of the row draws
    likeliest: tf.Tensor  # (B,) int32, the most likely token
    best: tf.Tensor  # (B,) float32, its log-probability


def choose_tokens_by_bins(
    head: tf.Tensor,
    bins: Sequence[tuple[int, int]],
    compute_inside: Callable[[int], tf.Tensor],
    uniforms: tf.Tensor,
    sampling: SamplingTensors,
) -> tf.Tensor:
    """Draws the tokens (B,) that `choose_tokens` draws, up to rounding, mostly from the head alone.

    The tokens of a bin follow each other in the cumulative distribution, and together they have
    the probability of their cluster. So the random number of a row decides between the tokens of
    bin 0 and the clusters, and only the bin of the cluster that it hits is computed. Greedy
    decoding computes only bins whose cluster is more likely than the best token found before. The
    softmax is that of Grave et al. 2017, https://arxiv.org/abs/1609.04309.

    Args:
        head: (B, n_0 + C), the log-probabilities of the tokens of bin 0 and of the C clusters.
        bins: The first id and the end of bin 0 and of the bin of each cluster.
        compute_inside: Returns log p(w | bin) of a bin's tokens, (B, n_i), given the bin's index.
        uniforms: (B,) float32 in [0, 1).
        sampling: The sampling settings; see `SamplingConfig.draws_by_bins`.
    """
    head_size = bins[0][1]
    is_allowed = [sampling.is_allowed[low:high] for low, high in bins]
    tokens = tf.where(is_allowed[0], head[:, :head_size], BANNED_LOGIT)
    clusters = head[:, head_size:]

    def compute_logits(index: int) -> tf.Tensor:
        logits = clusters[:, index - 1, None] + compute_inside(index)
        return tf.where(is_allowed[index], logits, BANNED_LOGIT)

    tails = range(1, len(bins))
    shares = [_compute_share(compute_inside, index, is_allowed[index], uniforms) for index in tails]
    masses = tf.concat([tf.exp(tokens), tf.exp(clusters) * tf.stack(shares, axis=-1)], axis=-1)
    ends = tf.cumsum(masses, axis=-1)
    targets = uniforms * ends[:, -1]
    slots = find_slots(ends, masses, targets)
    likeliest = tf.argmax(tokens, axis=-1, output_type=tf.int32)
    found = _Found(slots, likeliest, tf.reduce_max(tokens, axis=-1))
    for index in tails:
        slot = head_size + index - 1
        is_drawn, is_open = slots == slot, head[:, slot] > found.best
        search = functools.partial(
            _search_bin,
            found,
            functools.partial(compute_logits, index),
            bins[index][0],
            is_drawn,
            targets - ends[:, slot - 1],
        )
        is_needed = tf.reduce_any(tf.where(sampling.temperature > 0, is_drawn, is_open))
        found = tf.cond(is_needed, search, functools.partial(_Found, *found))
    return tf.where(sampling.temperature > 0, found.drawn, found.likeliest)


def _compute_share(
    compute_inside: Callable[[int], tf.Tensor],
    index: int,
    is_allowed: tf.Tensor,
    uniforms: tf.Tensor,
) -> tf.Tensor:
    """Returns the probability of the allowed tokens of a bin within the bin, (B,) float32."""
    return tf.cond(
        tf.reduce_all(is_allowed),
        lambda: tf.ones_like(uniforms),
        lambda: tf.reduce_sum(tf.where(is_allowed, tf.exp(compute_inside(index)), 0.0), axis=-1),
    )


def _search_bin(
    found: _Found,
    compute_logits: Callable[[], tf.Tensor],
    low: int,
    is_drawn: tf.Tensor,
    targets: tf.Tensor,
) -> _Found:
    """Returns the tokens found, after a search of the bin with the first id `low` and the logits.

    The rows `is_drawn`, (B,) bool, draw their token from this bin, beyond the probability
    `targets`, (B,), of its first tokens.
    """
    logits = compute_logits()  # (B, n_i)
    masses = tf.exp(logits)
    drawn = low + find_slots(tf.cumsum(masses, axis=-1), masses, targets)
    likeliest = low + tf.argmax(logits, axis=-1, output_type=tf.int32)
    top = tf.reduce_max(logits, axis=-1)
    return _Found(
        tf.where(is_drawn, drawn, found.drawn),
        tf.where(top > found.best, likeliest, found.likeliest),
        tf.maximum(top, found.best),
    )
