"""Effective context lengths, from the losses of the same tokens after contexts of several lengths.

Letters: C context lengths, n positions, I models. Losses are -log p in nats.

References:
    Dai et al. 2019, section 4.3 and appendix C, https://arxiv.org/abs/1901.02860; Khandelwal et al.
    2018, https://arxiv.org/abs/1805.04623.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Length(NamedTuple):
    """An effective context length.

    Args:
        tokens: The length in tokens.
        is_last: Whether it is the longest length measured: the true one may be longer.
    """

    tokens: int
    is_last: bool

    def __str__(self) -> str:
        return f"{self.tokens:,}{' or more' if self.is_last else ''}"


class ContextCurve(NamedTuple):
    """The loss by context length (figure 4 of the paper); each array is (C,).

    Losses vary more between targets than between contexts, but all contexts have the same targets.
    The standard error of the difference to the longest context is therefore much smaller than that
    of a mean.
    """

    means: np.ndarray  # in bits or as perplexities
    errors: np.ndarray  # the standard errors of the means
    excess_errors: np.ndarray  # the standard errors of the differences

    @property
    def excess(self) -> np.ndarray:
        """(C,), the excess loss relative to the longest context."""
        return self.means - self.means[-1]


class Relative(NamedTuple):
    """The relative effective context lengths (RECL) of a group of models, for a share r.

    Args:
        share: The share r of the positions, the hardest ones, that count.
        n_positions: The number of these positions.
        losses: (I, C, C) float64, f_i(c, c') in nats for c <= c', NaN below the diagonal.
        lengths: The RECL of each model.
    """

    share: float
    n_positions: int
    losses: np.ndarray
    lengths: list[Length]

    @property
    def gains(self) -> np.ndarray:
        """(I, C, C), exp f_i(c, c) - exp f_i(c, c'), which figure 3 of the paper shows."""
        perplexities = np.exp(self.losses)
        return np.diagonal(perplexities, axis1=1, axis2=2)[:, :, None] - perplexities


def summarize_losses(losses: np.ndarray, *, as_perplexity: bool) -> ContextCurve:
    """Returns the context curve of losses (C, n) in nats, as perplexities or in bits."""
    n_targets = losses.shape[1]

    def estimate_error(values: np.ndarray) -> np.ndarray:
        spread = values.std(axis=1, dtype=np.float64, ddof=min(1, n_targets - 1))
        return spread / np.sqrt(n_targets)

    means = losses.mean(axis=1, dtype=np.float64)
    errors, excess_errors = estimate_error(losses), estimate_error(losses - losses[-1])
    if as_perplexity:  # to first order
        means = np.exp(means)
        return ContextCurve(means, means * errors, means * excess_errors)
    return ContextCurve(*(values / np.log(2) for values in (means, errors, excess_errors)))


def find_effective_length(
    losses: np.ndarray, lengths: Sequence[int], threshold: float = 0.001
) -> Length:
    """Returns the effective context length (ECL) of a model with losses (C, n) by length.

    It is the longest length up to which a longer context still gains more than a threshold: the
    last of the C ascending lengths at which the perplexity is lower than at the previous length by
    a fraction of more than `threshold` (0.1 % in the paper). If there is none, it is the first
    length.
    """
    means = losses.mean(axis=1, dtype=np.float64)
    gains = 1 - np.exp(means[1:] - means[:-1])
    found = np.flatnonzero(gains > threshold)
    index = int(found[-1]) + 1 if len(found) else 0
    return Length(lengths[index], index == len(lengths) - 1 and index > 0)


def compare_models(
    losses: Sequence[np.ndarray],
    lengths: Sequence[int],
    share: float,
    threshold: float = 0.01,
) -> Relative:
    """Returns the relative effective context lengths of a group of models (appendix C).

    For a context c, each model is compared with the best of the group, b(c, t) = min_i l_i(c, t),
    at T(c), the `share` of the positions where b is highest. f_i(c, c') is the mean over T(c) of
    min(b(c, t), l_i(c', t)), the loss if model i helps out with a longer context c'. The RECL is
    the first c from which the next length gains less than `threshold`, relative to exp f_i(c, c).
    The losses of each model are (C, n), at the same positions.
    """
    stacked = np.stack(losses)  # (I, C, n)
    best = stacked.min(axis=0)
    n_lengths, n_positions = best.shape
    n_hard = max(1, round(share * n_positions))
    means = np.full((len(stacked), n_lengths, n_lengths), np.nan)
    for index in range(n_lengths):
        hard = np.argsort(-best[index], kind="stable")[:n_hard]
        helped = np.minimum(best[index, hard], stacked[:, index:, hard])
        means[:, index, index:] = helped.mean(axis=-1, dtype=np.float64)
    found = [_walk(of_model, lengths, threshold) for of_model in means]
    return Relative(share, n_hard, means, found)


def _walk(means: np.ndarray, lengths: Sequence[int], threshold: float) -> Length:
    """Returns the first length from which the next one gains too little; `means` is f_i."""
    for index, length in enumerate(lengths[:-1]):
        gain = 1 - np.exp(means[index, index + 1] - means[index, index])
        if gain < threshold:
            return Length(length, False)
    return Length(lengths[-1], True)
