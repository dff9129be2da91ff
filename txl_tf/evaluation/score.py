"""The loss of a text, in the units in which it is published, and its unknown tokens."""

import math
from typing import NamedTuple, Protocol

# Where a token is a character, so that bits per token are bits per character.
_CHARACTER_LEVELS = ("byte", "char")


class Measured(Protocol):
    """A loss: of a split, a text or several texts."""

    @property
    def tokens(self) -> int:
        """The tokens that were scored."""
        ...

    @property
    def level(self) -> str | None:
        """The level of the vocabulary; `None` if it is not known."""
        ...

    @property
    def n_unknown(self) -> int | None:
        """The tokens scored that are the symbol for unknown ones; `None` if that is not known."""
        ...

    @property
    def bits_per_token(self) -> float:
        """The mean loss in bits."""
        ...

    @property
    def bpc(self) -> float | None:
        """The bits per character; see `compute_bpc`."""
        ...


def name_measure(level: str | None) -> str:
    """Returns the unit in which results at a level of the vocabulary are published."""
    units = {"word": "perplexity", "byte": "bpc", "char": "bpc"}
    return units.get(level or "", "bits per token")


def name_bits(level: str | None) -> str:
    """Returns the key of the bits per token in records.

    >>> name_bits("byte"), name_bits("word"), name_bits(None)
    ('bpc', 'bits_per_token', 'bits_per_token')
    """
    return "bpc" if level in _CHARACTER_LEVELS else "bits_per_token"


def compute_bpc(
    bits_per_token: float, level: str | None, n_unknown: int | None = None
) -> float | None:
    """Returns the bits per character of a text, or per byte at level "byte".

    Args:
        bits_per_token: The mean loss in bits.
        level: That of the vocabulary.
        n_unknown: The tokens that are the symbol for unknown ones.

    Returns:
        `None` where a token is no character, and where a token stands for any unknown character:
        what that character is was not scored.
    """
    return bits_per_token if level in _CHARACTER_LEVELS and not n_unknown else None


def compute_share(n_unknown: int | None, tokens: int) -> float | None:
    """Returns the share of unknown tokens; 0 where there is no token, `None` if not known."""
    return None if n_unknown is None else n_unknown / max(tokens, 1)


def make_bits_record(score: Measured) -> dict[str, float | None]:
    """Returns the bits of a score under their name, for records.

    That is `bpc` for bytes and characters and `bits_per_token` for other tokens. Where a character
    was unknown, `bpc` is `None` and `bits_per_token` is there too.
    """
    if name_bits(score.level) == "bpc":
        rest = {"bits_per_token": score.bits_per_token} if score.bpc is None else {}
        return {"bpc": score.bpc, **rest}
    return {"bits_per_token": score.bits_per_token}


def make_unknown_record(score: Measured) -> dict[str, float | None]:
    """Returns count and share of the unknown tokens of a score, for records."""
    return {
        "unknown_tokens": score.n_unknown,
        "unknown_share": compute_share(score.n_unknown, score.tokens),
    }


def format_unknown(score: Measured) -> str:
    """Returns count and share of the unknown tokens of a score, for people."""
    share = compute_share(score.n_unknown, score.tokens)
    return "-" if share is None else f"{score.n_unknown:,} ({share:.2%})"


def describe_unknown(score: Measured, symbol: str | None) -> str:
    """Returns the warning for a score of which some tokens are unknown.

    Args:
        score: The score.
        symbol: The symbol for unknown tokens.
    """
    return (
        f"{format_unknown(score)} of {score.tokens:,} scored tokens are {symbol}: their loss says "
        "how well the model predicts that a token is unknown, not which one it is, so it is lower "
        "than that of a larger vocabulary; bits per byte and bits per character are left out"
    )


def compute_perplexity(nats: float) -> float:
    """Returns e to a mean loss, and to 700 at the most: `math.exp` raises from 710 on.

    >>> compute_perplexity(0.0)
    1.0
    """
    return math.exp(min(nats, 700.0))


class Score(NamedTuple):
    """The loss of a text.

    Args:
        nats: sum of -log p over the tokens.
        tokens: how many were scored.
        level: that of the vocabulary; `None` if it is not known.
        n_unknown: how many of the tokens are the symbol for unknown ones; `None` if the vocabulary
            is not known.
    """

    nats: float
    tokens: int
    level: str | None = None
    n_unknown: int | None = None

    def add(self, nats: float, tokens: int, n_unknown: int) -> "Score":
        """Returns the score with more tokens, so many of them unknown."""
        total = None if self.n_unknown is None else self.n_unknown + n_unknown
        return self._replace(nats=self.nats + nats, tokens=self.tokens + tokens, n_unknown=total)

    @property
    def nats_per_token(self) -> float:
        """Mean loss."""
        return self.nats / self.tokens

    @property
    def bits_per_token(self) -> float:
        """Mean loss in bits, at any level."""
        return self.nats_per_token / math.log(2)

    @property
    def bpc(self) -> float | None:
        """Bits per character, at level "byte" per byte.

        `None` at other levels, where the level is not known, and where a character was unknown.
        """
        return compute_bpc(self.bits_per_token, self.level, self.n_unknown)

    @property
    def unknown_share(self) -> float | None:
        """The share of the tokens that are unknown; `None` as `n_unknown`."""
        return compute_share(self.n_unknown, self.tokens)

    @property
    def perplexity(self) -> float:
        """E to the mean loss."""
        return compute_perplexity(self.nats_per_token)


def name_losses(score: Score) -> dict[str, float | None]:
    """Returns a loss in all units, by their names in logs and in TensorBoard."""
    return {
        "loss_nats": score.nats_per_token,
        **make_bits_record(score),
        "perplexity": score.perplexity,
    }


def format_score(score: Score, n_tokens: int | None = None) -> str:
    """Returns a score as a line for people.

    Args:
        score: the score.
        n_tokens: the tokens of all of the split, where not all were scored.
    """
    cut = "" if n_tokens is None else f" of {n_tokens:,}"
    bits = "bits per token" if score.bpc is None else "bpc"
    unknown = f", {format_unknown(score)} unknown" if score.n_unknown else ""
    return (
        f"loss {score.nats_per_token:.4f} nats | {bits} {score.bits_per_token:.4f} | "
        f"perplexity {score.perplexity:.5g} | {score.tokens:,.0f} tokens{cut}{unknown}"
    )


def format_measure(score: Score, level: str | None) -> str:
    """Returns a score in the unit in which results at a level of the vocabulary are given.

    >>> format_measure(Score(nats=30.0, tokens=10), "word")
    'perplexity 20.086'
    """
    name = name_measure(level)
    if name == "perplexity":
        return f"{name} {score.perplexity:.5g}"
    return f"{'bits per token' if score.n_unknown else name} {score.bits_per_token:.4f}"
