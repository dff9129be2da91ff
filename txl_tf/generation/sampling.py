"""Sampling: the options for users, and the rules for drawing the next token."""

import copy
import functools
import math
import numbers
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypedDict

import numpy as np
import tensorflow as tf

from txl_tf.config import DEFAULT_TEMPERATURE, DEFAULT_TOP_K
from txl_tf.errors import UserError

UNIFORMS_PER_BLOCK = 32
BANNED_LOGIT = -1e30  # a float32 whose softmax is exactly 0
_ALL = 2**31 - 1  # candidates: more than any vocabulary has
_N_SORTED_FIRST = 1024  # sorting a large vocabulary takes longer than the model


class Sampler:
    """A rule for drawing the next token of each text; subclasses define `choose`.

    The loop over tokens is compiled together with `choose`. In it, attributes that are floats or
    arrays become tensors, of float32 or integers, so new values do not require compilation. Other
    attributes must be hashable, and the loop is compiled once for each of their values. A rule
    keeps nothing from one token to the next: what `choose` assigns to `self` is lost.

    >>> class MinP(Sampler):
    ...     def __init__(self, min_p):
    ...         self.min_p = float(min_p)
    ...
    ...     def choose(self, log_probs, uniforms, seen):
    ...         weights = tf.nn.softmax(log_probs)
    ...         least = self.min_p * tf.reduce_max(weights, axis=-1, keepdims=True)
    ...         return draw_by_weights(tf.where(weights >= least, weights, 0.0), uniforms)
    >>> log_probs = tf.math.log([[0.5, 0.3, 0.2]] * 2)
    >>> MinP(0.5).choose(log_probs, uniforms=tf.constant([0.1, 0.999]), seen=None).numpy()
    array([0, 1], dtype=int32)
    """

    def choose(self, log_probs: tf.Tensor, uniforms: tf.Tensor, seen: tf.Tensor) -> tf.Tensor:
        """Draws a token for each text, (B,) integers.

        Args:
            log_probs: (B, V) float32, the log-probabilities of the next token; -1e30 for banned
                tokens.
            uniforms: (B,) float32 in [0, 1), a random number for each text. If each row of the
                result depends only on the same rows of the arguments, no text depends on others.
            seen: (B, V) bool, whether the text already contains each token.
        """
        raise NotImplementedError

    @property
    def draws_by_bins(self) -> bool:
        """Whether a model with `cutoffs` calls `choose_by_bins`; see `StandardSampler`."""
        return False

    @property
    def tensors(self) -> dict[str, tf.Tensor]:
        """The attributes that become tensors in the loop, by name; floats become float32."""
        found = {name: tf.constant(x) for name, x in vars(self).items() if _is_tensor(x)}
        return {
            name: tf.cast(tensor, tf.float32) if tensor.dtype.is_floating else tensor
            for name, tensor in found.items()
        }

    @property
    def constants(self) -> Hashable:
        """What the loop is compiled for: the class and the other attributes."""
        attributes = vars(self).items()
        return type(self), tuple((name, None if _is_tensor(x) else (x,)) for name, x in attributes)

    def with_tensors(self, tensors: Mapping[str, tf.Tensor]) -> Self:
        """Returns a copy with the given tensors as attributes."""
        sampler = copy.copy(self)
        vars(sampler).update(tensors)
        return sampler


def _is_tensor(value: Any) -> bool:
    return isinstance(value, float | np.ndarray | tf.Tensor)


class SamplingOptions(TypedDict, total=False):
    """The options with which `LanguageModel` draws tokens; all are optional.

    Args:
        seed: A seed for all prompts, or a list with one for each; 0 by default. A text depends only
            on its own seed, not on the other texts. A quantized model computes more than four texts
            differently than fewer, so texts may differ; see docs/generating.md.
        temperature: Divisor of the log-probabilities, 0.95 by default; 0 always takes the most
            likely token (greedy decoding).
        top_k: Draw from this many of the most likely tokens, 40 by default; 0 or `None` for all.
        top_p: Nucleus sampling: draw from the most likely tokens that together have this
            probability; `None`, the default, for all.
        repetition_penalty: Factor of the log-probabilities of tokens that the text already
            contains; 1, the default, for no penalty.
        sampler: Another rule, which replaces the four options above.
        banned: Symbols, or texts of one token, that are never drawn; a `str` is a single one.
            `None`, the default, bans the unknown symbol, if there is one.
        stops: Symbols, or texts of any length, that end a text; none by default. A `str` is a
            single stop. Only the added text is searched. The text ends with the stop: a subword is
            cut after it, a word is not.
    """

    seed: int | Sequence[int]
    temperature: float
    top_k: int | None
    top_p: float | None
    repetition_penalty: float
    sampler: Sampler | None
    banned: str | Iterable[str] | None
    stops: str | Iterable[str]


class StandardSampler(Sampler):
    """Temperature, top-k, nucleus (top-p) and repetition penalty; see `SamplingOptions`.

    Raises:
        UserError: If a value is out of range.
    """

    def __init__(
        self,
        temperature: float = DEFAULT_TEMPERATURE,
        top_k: int | None = DEFAULT_TOP_K,
        top_p: float | None = None,  # Holtzman et al. 2020, https://arxiv.org/abs/1904.09751
        repetition_penalty: float = 1.0,  # after Keskar et al. 2019, https://arxiv.org/abs/1909.05858
    ):
        def check(name: str, value: Any, rule: str, holds: Callable[[Any], Any]) -> None:
            if not isinstance(value, numbers.Real) or not holds(value):
                raise UserError(f"`{name}` must be {rule}. Received: {name}={value!r}")

        check("temperature", temperature, "a number of 0 or more", lambda x: 0 <= x < math.inf)
        if top_k is not None:
            rule = "an integer of 0, for all tokens, or more"
            check("top_k", top_k, rule, lambda x: isinstance(x, int | np.integer) and x >= 0)
        if top_p is not None:
            check("top_p", top_p, "a number in (0, 1]", lambda x: 0 < x <= 1)
        rule = "a number of 1 or more"
        check("repetition_penalty", repetition_penalty, rule, lambda x: 1 <= x < math.inf)
        self.temperature = float(temperature)
        # The number of most likely tokens to draw from; `None` for all, without sorting.
        self.n_candidates = int(top_k) if top_k else None if top_p is None else _ALL
        if temperature == 0:  # the most likely token needs no candidates
            self.n_candidates = None
        self.top_p = 1.0 if top_p is None else float(top_p)
        self.repetition_penalty = float(repetition_penalty)

    @property
    def draws_by_bins(self) -> bool:
        """Whether a token can be drawn from the head and at most one bin of an adaptive softmax.

        All other settings need the probability of every token, and so does the `choose` of a
        subclass.
        """
        is_own = type(self).choose is StandardSampler.choose
        has_all = self.n_candidates is None and self.repetition_penalty == 1
        return is_own and has_all and self.temperature in (0, 1)

    def choose(self, log_probs: tf.Tensor, uniforms: tf.Tensor, seen: tf.Tensor) -> tf.Tensor:
        """See `Sampler`; inverts the cumulative distribution."""
        logits = tf.where(seen, log_probs * self.repetition_penalty, log_probs)
        greedy = tf.argmax(logits, axis=-1, output_type=tf.int32)
        scaled = logits / tf.where(self.temperature > 0, self.temperature, 1.0)
        n_token, n_candidates = logits.shape[-1], self.n_candidates
        if n_candidates is None:
            drawn = draw_by_weights(tf.nn.softmax(scaled), uniforms)
        elif isinstance(n_candidates, int) and n_candidates >= n_token > _N_SORTED_FIRST:
            draw = functools.partial(_draw_from_nucleus, uniforms=uniforms, top_p=self.top_p)
            weights = tf.nn.softmax(scaled)
            first = tf.math.top_k(weights, _N_SORTED_FIRST)
            drawn = tf.cond(
                tf.reduce_all(tf.reduce_sum(first.values, axis=-1) >= self.top_p),
                lambda: draw(*first),
                lambda: draw(*tf.math.top_k(weights, n_token)),
            )
        else:
            if isinstance(n_candidates, int):  # not the tensor of a SavedModel
                n_candidates = min(n_candidates, n_token)
            scaled, tokens = tf.math.top_k(scaled, n_candidates)
            drawn = _draw_from_nucleus(tf.nn.softmax(scaled), tokens, uniforms, self.top_p)
        return tf.where(self.temperature > 0, drawn, greedy)

    def choose_by_bins(
        self,
        head: tf.Tensor,
        bins: Sequence[tuple[int, int]],
        compute_inside: Callable[[int], tf.Tensor],
        uniforms: tf.Tensor,
        is_allowed: tf.Tensor,
    ) -> tf.Tensor:
        """Draws the tokens (B,) that `choose` draws, up to rounding, mostly from the head alone.

        The tokens of a bin are adjacent in the cumulative distribution, and together they have the
        probability of their cluster. The random number of a row therefore selects a token of bin 0
        or a cluster, and only the bin of a selected cluster is computed. Greedy decoding computes
        only bins whose cluster is more likely than the best token found so far. The softmax is that
        of Grave et al. 2017, https://arxiv.org/abs/1609.04309.

        Args:
            head: (B, n_0 + C), the log-probabilities of the tokens of bin 0 and of the C clusters.
            bins: The first id and the end (exclusive) of bin 0 and of each cluster's bin.
            compute_inside: Returns log p(w | bin) of a bin's tokens, (B, n_i), given the bin's
                index.
            uniforms: (B,) float32 in [0, 1).
            is_allowed: (V,) bool, whether each token may be drawn.
        """
        head_size = bins[0][1]
        allowed = [is_allowed[low:high] for low, high in bins]
        tokens = tf.where(allowed[0], head[:, :head_size], BANNED_LOGIT)
        clusters = head[:, head_size:]
        tails = range(1, len(bins))
        shares = [
            _compute_share(compute_inside, index, allowed[index], uniforms) for index in tails
        ]
        masses = tf.concat([tf.exp(tokens), tf.exp(clusters) * tf.stack(shares, axis=-1)], axis=-1)
        ends = tf.cumsum(masses, axis=-1)
        targets = uniforms * ends[:, -1]
        candidates = _find_candidates(ends, masses, targets)
        likeliest = tf.argmax(tokens, axis=-1, output_type=tf.int32)
        found = _Found(candidates, likeliest, tf.reduce_max(tokens, axis=-1))

        def search_bin(index: int, found: _Found) -> _Found:
            low, cluster = bins[index][0], head_size + index - 1
            logits = head[:, cluster, None] + compute_inside(index)
            logits = tf.where(allowed[index], logits, BANNED_LOGIT)  # (B, n_i)
            masses = tf.exp(logits)
            drawn = _find_candidates(
                tf.cumsum(masses, axis=-1), masses, targets - ends[:, cluster - 1]
            )
            likeliest = tf.argmax(logits, axis=-1, output_type=tf.int32)
            top = tf.reduce_max(logits, axis=-1)
            return _Found(
                tf.where(candidates == cluster, low + drawn, found.drawn),
                tf.where(top > found.best, low + likeliest, found.likeliest),
                tf.maximum(top, found.best),
            )

        for index in tails:
            cluster = head_size + index - 1
            is_drawn, is_open = candidates == cluster, head[:, cluster] > found.best
            is_needed = tf.reduce_any(tf.where(self.temperature > 0, is_drawn, is_open))
            search = functools.partial(search_bin, index, found)
            found = tf.cond(is_needed, search, functools.partial(_Found, *found))
        return tf.where(self.temperature > 0, found.drawn, found.likeliest)


class _Found(NamedTuple):
    """The tokens found in the bins searched so far."""

    drawn: tf.Tensor  # (B,) int32, the token that the random number of the row draws
    likeliest: tf.Tensor  # (B,) int32, the most likely token
    best: tf.Tensor  # (B,) float32, its log-probability


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


def draw_by_weights(weights: tf.Tensor, uniforms: tf.Tensor) -> tf.Tensor:
    """Draws a candidate for each row, (B,) int32, with probabilities proportional to the weights.

    `weights` are (B, n) float32, not negative; `uniforms` are (B,) float32 in [0, 1).
    """
    ends = tf.cumsum(weights, axis=-1)
    return _find_candidates(ends, weights, uniforms * ends[:, -1])


def _draw_from_nucleus(
    weights: tf.Tensor, tokens: tf.Tensor, uniforms: tf.Tensor, top_p: tf.Tensor
) -> tf.Tensor:
    """Draws a token for each row, (B,) int32, from the first tokens that together reach `top_p`.

    `weights`, (B, n) float32, are the probabilities of `tokens`, in descending order.
    """
    ends = tf.cumsum(weights, axis=-1)
    weights = tf.where(ends - weights < top_p, weights, 0.0)  # including the one that reaches it
    return tf.gather(tokens, draw_by_weights(weights, uniforms), batch_dims=1)


def _find_candidates(ends: tf.Tensor, weights: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Returns each row's first candidate, (B,) int32, whose cumulative weight exceeds a target.

    `ends` (B, n) float32 are the cumulative sums of the weights (B, n); `targets` (B,) are at most
    the last of them.
    """
    candidates = tf.reduce_sum(tf.cast(ends <= targets[:, None], tf.int32), axis=-1)
    # A target that is rounded up to the total would select a candidate beyond the last weight.
    last = tf.reduce_max(tf.where(weights > 0, tf.range(tf.shape(weights)[-1]), 0), axis=-1)
    return tf.minimum(candidates, last)


def draw_uniforms(seed: int | tf.Tensor, block: int | tf.Tensor) -> tf.Tensor:
    """Returns the random numbers of the 32 tokens from `32 * block` on, (32,) float32 in [0, 1).

    They are the same on every machine. The generator is Philox (Salmon et al. 2011,
    https://doi.org/10.1145/2063384.2063405).
    """
    key = tf.stack([tf.cast(seed, tf.int64), tf.cast(block, tf.int64)])
    return tf.random.stateless_uniform((UNIFORMS_PER_BLOCK,), key, alg="philox")
