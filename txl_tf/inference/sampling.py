"""How the next token is chosen."""

import dataclasses
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.errors import UserError

UNIFORMS_PER_BLOCK = 32
_NEVER = -1e30  # in float32, of which softmax makes an exact 0


class SamplingTensors(NamedTuple):
    """What decides the choice of a token.

    Args:
        temperature: () float32, the log-probabilities are divided by it; 0 takes the likeliest.
        top_p: () float32, draw among the likeliest tokens that together have this probability
            (Holtzman et al. 2020, https://arxiv.org/abs/1904.09751); 1 for all.
        repetition_penalty: () float32, the log-probabilities of tokens that the text holds are
            multiplied by it (after Keskar et al. 2019, https://arxiv.org/abs/1909.05858); 1 for
            none.
        is_allowed: (V,) bool, which tokens may be drawn.
        stops: (k,) int32, tokens that end a text.
    """

    temperature: tf.Tensor
    top_p: tf.Tensor
    repetition_penalty: tf.Tensor
    is_allowed: tf.Tensor
    stops: tf.Tensor


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """How tokens are chosen: temperature, top-k, nucleus (top-p) sampling, penalty, stops.

    Args:
        temperature: the log-probabilities are divided by it; 0 takes the likeliest token.
        top_k: draw among so many likeliest tokens; `None` for all.
        top_p: draw among the likeliest tokens that together have this probability, the nucleus;
            `None` for all (Holtzman et al. 2020, https://arxiv.org/abs/1904.09751).
        repetition_penalty: log-probabilities of tokens that the text holds are multiplied by it
            (after Keskar et al. 2019, https://arxiv.org/abs/1909.05858); 1 for none.
        banned: ids that are never drawn.
        stops: ids that end a text; they are its last.

    Raises:
        UserError: a value is out of its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    banned: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(
                f"`temperature` must be 0 or more. Received: temperature={self.temperature}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"`top_k` must be positive. Received: top_k={self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"`top_p` must be in (0, 1]. Received: top_p={self.top_p}")
        if not 1 <= self.repetition_penalty < float("inf"):
            raise UserError(
                "`repetition_penalty` must be 1 or more. "
                f"Received: repetition_penalty={self.repetition_penalty}"
            )

    def count_candidates(self, n_token: int) -> int | None:
        """Returns among how many of the likeliest tokens to draw; `None` for all, unsorted."""
        if self.top_k is None and self.top_p is None:
            return None
        return min(self.top_k or n_token, n_token)

    def make_tensors(self, n_token: int) -> SamplingTensors:
        """Returns the tensors of the loop, for V tokens.

        Raises:
            UserError: all tokens are banned.
        """
        is_allowed = np.ones(n_token, bool)
        is_allowed[list(self.banned)] = False
        if not is_allowed.any():
            raise UserError(f"`banned` must leave a token. Received: all {n_token}")
        return SamplingTensors(
            tf.constant(self.temperature, tf.float32),
            tf.constant(1.0 if self.top_p is None else self.top_p, tf.float32),
            tf.constant(self.repetition_penalty, tf.float32),
            tf.constant(is_allowed),
            tf.constant(self.stops, tf.int32, shape=(len(self.stops),)),
        )


def draw_uniforms(seed: int | tf.Tensor, block: int | tf.Tensor) -> tf.Tensor:
    """Returns the numbers that decide 32 tokens of a text, the same on every machine.

    Args:
        seed: () integer, of the text.
        block: () integer; the first of the tokens is number `32 * block` of those that are drawn.

    Returns:
        (32,) float32 in [0, 1), by Philox (Salmon et al. 2011,
        https://doi.org/10.1145/2063384.2063405).
    """
    key = tf.stack([tf.cast(seed, tf.int64), tf.cast(block, tf.int64)])
    return tf.random.stateless_uniform((UNIFORMS_PER_BLOCK,), key, alg="philox")


def penalize(log_probs: tf.Tensor, seen: tf.Tensor, sampling: SamplingTensors) -> tf.Tensor:
    """Returns the logits of the choice, (B, V) float32.

    Args:
        log_probs: (B, V) float32 in nats.
        seen: (B, V) bool, which tokens the text holds.
        sampling: penalty, and what is allowed.
    """
    penalized = tf.where(seen, log_probs * sampling.repetition_penalty, log_probs)
    return tf.where(sampling.is_allowed, penalized, _NEVER)


def choose_tokens(
    logits: tf.Tensor,
    uniforms: tf.Tensor,
    sampling: SamplingTensors,
    n_candidates: int | None = None,
) -> tf.Tensor:
    """Draws a token of each row by inverting the distribution function.

    One number a row decides, so that a row's token does not depend on the other rows.

    Args:
        logits: (B, V) float32.
        uniforms: (B,) float32 in [0, 1).
        sampling: temperature and `top_p`, which counts only with `n_candidates`.
        n_candidates: draw among so many of the likeliest; `None` for all, in the order of the ids.

    Returns:
        (B,) int32.
    """
    likeliest = tf.argmax(logits, axis=-1, output_type=tf.int32)
    scaled = logits / tf.where(sampling.temperature > 0, sampling.temperature, 1.0)
    if n_candidates is not None:
        scaled, tokens = tf.math.top_k(scaled, n_candidates)
    weights = tf.nn.softmax(scaled)
    ends = tf.cumsum(weights, axis=-1)
    if n_candidates is not None:  # the one that reaches top_p is the last that counts
        weights = tf.where(ends - weights < sampling.top_p, weights, 0.0)
        ends = tf.cumsum(weights, axis=-1)
    targets = uniforms[:, None] * ends[:, -1:]
    places = tf.reduce_sum(tf.cast(ends <= targets, tf.int32), axis=-1)
    # A product that is rounded up to the end would point behind the last that may be drawn.
    last = tf.reduce_max(tf.where(weights > 0, tf.range(tf.shape(weights)[-1]), 0), axis=-1)
    places = tf.minimum(places, last)
    if n_candidates is not None:
        places = tf.gather(tokens, places, batch_dims=1)
    return tf.where(sampling.temperature > 0, places, likeliest)
