"""The loss of a text in the published units, and the number of its unknown tokens."""

import math
import sys
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from txl_tf.data.text.vocabulary import CHARACTER_LEVELS, Vocabulary


@dataclass(frozen=True, repr=False)
class Score:
    """The loss of a split, of a text, or of several texts.

    In the 2019 code: `metric_fn`.

    Args:
        total_nats: The sum of -log p over the tokens.
        tokens: The number of scored tokens.
        level: The level of the vocabulary; `None` if unknown.
        n_unknown: The number of tokens that are the symbol for unknown tokens; `None` if there is
            no vocabulary.
    """

    total_nats: float
    tokens: int
    level: str | None = None
    n_unknown: int | None = None

    @property
    def nats_per_token(self) -> float:
        """The mean loss; NaN if no token was scored."""
        return self.total_nats / self.tokens if self.tokens else math.nan

    @property
    def bits_per_token(self) -> float:
        """The mean loss in bits, at any level."""
        return self.nats_per_token / math.log(2)

    @property
    def bpc(self) -> float | None:
        """Bits per character; at level "byte", bits per byte.

        It is `None` if tokens are not characters, or if a token stands for an unknown character,
        because the prediction of that character was not scored.
        """
        is_known = self.level in CHARACTER_LEVELS and not self.n_unknown
        return self.bits_per_token if is_known else None

    @property
    def unknown_share(self) -> float | None:
        """The fraction of unknown tokens; `None` without a vocabulary or scored tokens."""
        if self.n_unknown is None or not self.tokens:
            return None
        return self.n_unknown / self.tokens

    @property
    def perplexity(self) -> float:
        """The exponential of the mean loss; NaN if no token was scored."""
        return compute_perplexity(self.nats_per_token)

    @property
    def losses(self) -> dict[str, float | None]:
        """The mean loss in all units, by their names in records and TensorBoard.

        If tokens are characters, the bits are called `bpc`, which is `None` with unknown tokens.
        """
        bits = {"bpc": self.bpc} if self.level in CHARACTER_LEVELS else {}
        if self.bpc is None:
            bits["bits_per_token"] = self.bits_per_token
        return {"loss_nats": self.nats_per_token, **bits, "perplexity": self.perplexity}

    def to_json(self) -> dict[str, float | None]:
        """Returns the losses and the numbers of tokens and unknown tokens, for records."""
        unknown = {"unknown_tokens": self.n_unknown, "unknown_share": self.unknown_share}
        return {**self.losses, "tokens": self.tokens, **unknown}

    def describe(self, n_tokens: int | None = None) -> str:
        """Returns the score on one line, with the tokens of the split if not all were scored."""
        cut = "" if n_tokens is None else f" of {n_tokens:,}"
        bits = "bits per token" if self.bpc is None else "bpc"
        unknown = f", {self.describe_unknown()} unknown" if self.n_unknown else ""
        return (
            f"loss {self.nats_per_token:.4f} nats | {bits} {self.bits_per_token:.4f} | "
            f"perplexity {self.perplexity:.5g} | {self.tokens:,.0f} tokens{cut}{unknown}"
        )

    def describe_unit(self) -> str:
        """Returns the loss in the unit in which results at its vocabulary level are published.

        >>> Score(total_nats=30.0, tokens=10, level="word").describe_unit()
        'perplexity 20.086'
        """
        unit = name_unit(self.level)
        if unit == "perplexity":
            return f"{unit} {self.perplexity:.5g}"
        return f"{'bits per token' if self.n_unknown else unit} {self.bits_per_token:.4f}"

    def describe_unknown(self) -> str:
        """Returns the number and the share of unknown tokens, or "-" if the share is `None`."""
        return (
            "-" if self.unknown_share is None else f"{self.n_unknown:,} ({self.unknown_share:.2%})"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.describe()}>"

    def __add__(self, other: Self) -> Self:
        names = [field.name for field in fields(self) if field.name != "level"]
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        sums: Any = {name: None if None in pair else sum(pair) for name, pair in pairs.items()}
        return replace(self, level=self.level or other.level, **sums)


def sum_losses(nats: np.ndarray, targets: np.ndarray, vocabulary: Vocabulary | None) -> Score:
    """Returns the score for the losses, (n,) float32 in nats, of targets, (n,) int32.

    The vocabulary determines the level and the unknown tokens; `None` if only ids are known.
    """
    score = Score(float(nats.sum(dtype=np.float64)), len(targets))
    if vocabulary is None:
        return score
    n_unknown = int(np.count_nonzero(targets == vocabulary.unknown_id))
    return replace(score, level=vocabulary.level, n_unknown=n_unknown)


def compute_perplexity(nats: float) -> float:
    """Returns the exponential of a mean loss, capped at 700: `math.exp` overflows from 710 on."""
    return math.exp(min(nats, 700.0))


def name_unit(level: str | None) -> str:
    """Returns the unit in which results at a vocabulary level are published."""
    if level in CHARACTER_LEVELS:
        return "bpc"
    return "perplexity" if level == "word" else "bits per token"


def explain_unknown(score: Score, symbol: str | None) -> str:
    """Returns a warning about a score with unknown tokens; `symbol` is the one for these."""
    return (
        f"{score.describe_unknown()} of {score.tokens:,} scored tokens are {symbol}: their loss "
        "says how well the model predicts that a token is unknown, not which token it is, so it is "
        "lower than with a larger vocabulary; bits per byte and bits per character are left out"
    )


def warn_of_unknown(score: Score, vocabulary: Vocabulary) -> None:
    """Prints a warning to standard error if any scored token is unknown."""
    if score.n_unknown:
        print(f"warning: {explain_unknown(score, vocabulary.unknown)}", file=sys.stderr)
