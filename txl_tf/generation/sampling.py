"""Sampling of the next token: temperature, top-k, nucleus (top-p), repetition penalty."""

import dataclasses
import functools
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.errors import UserError

UNIFORMS_PER_BLOCK = 32
_N_SORTED_FIRST = 1024  # a sort of a large vocabulary takes longer than the model
BANNED_LOGIT = -1e30  # a float32 whose softmax is exactly 0


class SamplingTensors(NamedTuple):
    """The settings of a `SamplingConfig` as tensors, so that their values need no compilation."""

    temperature: tf.Tensor  # () float32
    top_p: tf.Tensor  # () float32, 1 for all tokens
    repetition_penalty: tf.Tensor  # () float32
    is_allowed: tf.Tensor  # (V,) bool, whether each token may be drawn
    stops: tf.Tensor  # (k,) int32, the tokens that end a text


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """The sampling settings; see `LanguageModel.start`.

    Raises:
        UserError: If a value is out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None  # Holtzman et al. 2020, https://arxiv.org/abs/1904.09751
    repetition_penalty: float = 1.0  # after Keskar et al. 2019, https://arxiv.org/abs/1909.05858
    banned: tuple[int, ...] = ()  # ids that are never drawn
    stops: tuple[int, ...] = ()  # ids that end a text, which keeps them

    def __post_init__(self) -> None:
        self._check("temperature", "a number of 0 or more", lambda x: 0 <= x < float("inf"))
        if self.top_k is not None:
            rule = "an integer of 0, for all tokens, or more"
            self._check("top_k", rule, lambda x: isinstance(x, int | np.integer) and x >= 0)
        object.__setattr__(self, "top_k", self.top_k or None)
        if self.top_p is not None:
            self._check("top_p", "a number in (0, 1]", lambda x: 0 < x <= 1)
        self._check("repetition_penalty", "a number of 1 or more", lambda x: 1 <= x < float("inf"))

    def _check(self, name: str, rule: str, holds: Callable[[Any], Any]) -> None:
        value = getattr(self, name)
        if not isinstance(value, numbers.Real) or not holds(value):
            raise UserError(f"`{name}` must be {rule}. Received: {name}={value!r}")

    def count_candidates(self, n_token: int) -> int | None:
        """Returns the number of most likely tokens to draw from; `None` for all, unsorted."""
        if self.top_k is None and self.top_p is None:
            return None
        return min(self.top_k or n_token, n_token)

    @property
    def draws_by_bins(self) -> bool:
        """Whether a token can be drawn from the head and at most one bin of an adaptive softmax.

        Any other setting needs the probability of every token.
        """
        plain = SamplingConfig(self.temperature, banned=self.banned, stops=self.stops)
        return self == plain and self.temperature in (0, 1)

    def make_tensors(self, n_token: int) -> SamplingTensors:
        """Returns the settings as tensors, for a vocabulary of V tokens, not all of them banned."""
        is_allowed = np.ones(n_token, bool)
        is_allowed[list(self.banned)] = False
        if not is_allowed.any():
            raise UserError(f"`banned` must leave at least one token. Received: all {n_token}")
        return SamplingTensors(
            tf.constant(self.temperature, tf.float32),
            tf.constant(1.0 if self.top_p is None else self.top_p, tf.float32),
            tf.constant(self.repetition_penalty, tf.float32),
            tf.constant(is_allowed),
            tf.constant(self.stops, tf.int32, shape=(len(self.stops),)),
        )


def draw_uniforms(seed: int | tf.Tensor, block: int | tf.Tensor) -> tf.Tensor:
    """Returns the random numbers of the tokens from `32 * block` on, (32,) float32 in [0, 1).

    They are the same on every machine: those of Philox (Salmon et al. 2011,
    https://doi.org/10.1145/2063384.2063405).
    """
    key = tf.stack([tf.cast(seed, tf.int64), tf.cast(block, tf.int64)])
    return tf.random.stateless_uniform((UNIFORMS_PER_BLOCK,), key, alg="philox")


def penalize(log_probs: tf.Tensor, seen: tf.Tensor, sampling: SamplingTensors) -> tf.Tensor:
    """Returns log-probabilities (B, V) float32, penalized for tokens seen, without banned tokens.

    `seen` (B, V) bool tells whether the text already contains each token.
    """
    penalized = tf.where(seen, log_probs * sampling.repetition_penalty, log_probs)
    return tf.where(sampling.is_allowed, penalized, BANNED_LOGIT)


def choose_tokens(
    logits: tf.Tensor,
    uniforms: tf.Tensor,
    sampling: SamplingTensors,
    n_candidates: int | None = None,
) -> tf.Tensor:
    """Draws a token for each row, (B,) int32, by inverting the cumulative distribution.

    One random number per row, `uniforms` (B,) float32 in [0, 1), is used, so a row's token does not
    depend on the other rows. `logits` are (B, V) float32. `n_candidates` is the number of most
    likely tokens to draw from; `None` for all, unsorted, in which case `top_p` is not used.
    """
    greedy = tf.argmax(logits, axis=-1, output_type=tf.int32)
    scaled = logits / tf.where(sampling.temperature > 0, sampling.temperature, 1.0)
    has_all = isinstance(n_candidates, int) and n_candidates == logits.shape[-1]
    if n_candidates is None:
        weights = tf.nn.softmax(scaled)
        ends = tf.cumsum(weights, axis=-1)
        drawn = find_slots(ends, weights, uniforms * ends[:, -1])
    elif has_all and n_candidates > _N_SORTED_FIRST:
        draw = functools.partial(_draw_from_nucleus, uniforms=uniforms, top_p=sampling.top_p)
        weights = tf.nn.softmax(scaled)
        first = tf.math.top_k(weights, _N_SORTED_FIRST)
        drawn = tf.cond(
            tf.reduce_all(tf.reduce_sum(first.values, axis=-1) >= sampling.top_p),
            lambda: draw(*first),
            lambda: draw(*tf.math.top_k(weights, n_candidates)),
        )
    else:
        scaled, tokens = tf.math.top_k(scaled, n_candidates)
        drawn = _draw_from_nucleus(tf.nn.softmax(scaled), tokens, uniforms, sampling.top_p)
    return tf.where(sampling.temperature > 0, drawn, greedy)


def _draw_from_nucleus(
    weights: tf.Tensor, tokens: tf.Tensor, uniforms: tf.Tensor, top_p: tf.Tensor
) -> tf.Tensor:
    """Returns a token of each row, (B,) int32, from the first that reach `top_p` together.

    The probabilities `weights`, (B, n) float32, are in decreasing order.
    """
    ends = tf.cumsum(weights, axis=-1)
    weights = tf.where(ends - weights < top_p, weights, 0.0)  # with the token that reaches it
    ends = tf.cumsum(weights, axis=-1)
    return tf.gather(tokens, find_slots(ends, weights, uniforms * ends[:, -1]), batch_dims=1)


def find_slots(ends: tf.Tensor, weights: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Returns the first slot of each row, (B,) int32, that ends beyond the target and has a weight.

    `ends` (B, n) float32 are the cumulative sums of the weights (B, n), `targets` (B,) at most the
    last of them.
    """
    slots = tf.reduce_sum(tf.cast(ends <= targets[:, None], tf.int32), axis=-1)
    # A target that is rounded up to the total would select a slot beyond the last candidate.
    last = tf.reduce_max(tf.where(weights > 0, tf.range(tf.shape(weights)[-1]), 0), axis=-1)
    return tf.minimum(slots, last)


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
    tails = range(1, len(bins))
    shares = [_compute_share(compute_inside, index, is_allowed[index], uniforms) for index in tails]
    masses = tf.concat([tf.exp(tokens), tf.exp(clusters) * tf.stack(shares, axis=-1)], axis=-1)
    ends = tf.cumsum(masses, axis=-1)
    targets = uniforms * ends[:, -1]
    slots = find_slots(ends, masses, targets)
    likeliest = tf.argmax(tokens, axis=-1, output_type=tf.int32)
    found = _Found(slots, likeliest, tf.reduce_max(tokens, axis=-1))

    def search_bin(index: int, found: _Found) -> _Found:
        low, slot = bins[index][0], head_size + index - 1
        logits = head[:, slot, None] + compute_inside(index)
        logits = tf.where(is_allowed[index], logits, BANNED_LOGIT)  # (B, n_i)
        masses = tf.exp(logits)
        drawn = find_slots(tf.cumsum(masses, axis=-1), masses, targets - ends[:, slot - 1])
        likeliest = tf.argmax(logits, axis=-1, output_type=tf.int32)
        top = tf.reduce_max(logits, axis=-1)
        return _Found(
            tf.where(slots == slot, low + drawn, found.drawn),
            tf.where(top > found.best, low + likeliest, found.likeliest),
            tf.maximum(top, found.best),
        )

    for index in tails:
        slot = head_size + index - 1
        is_drawn, is_open = slots == slot, head[:, slot] > found.best
        is_needed = tf.reduce_any(tf.where(sampling.temperature > 0, is_drawn, is_open))
        search = functools.partial(search_bin, index, found)
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
