"""The scores of texts."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from txl_tf.scoring.metrics import Score, compute_perplexity


@dataclass(frozen=True, repr=False)
class TextTotals(Score):
    """The loss of one or more texts.

    Every token with context is scored: all but the first, if a text is read from an empty memory.
    The first four arguments are those of `Score`.

    Args:
        n_bytes: Number of bytes in the UTF-8 text, without those of a first token that was not
            scored; `None` if only the ids are known.
        n_words: Number of words in the text, split at white space, without those inside such a
            first token. At level "word", the number of scored tokens, including line marks. `None`
            if only the ids are known.
    """

    n_bytes: int | None = 0
    n_words: int | None = 0

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of the text, at every level.

        `None` if there are no bytes, or if a token is unknown, because the bytes that such a token
        stands for were not scored.
        """
        if not self.n_bytes or self.n_unknown:
            return None
        return self.total_nats / math.log(2) / self.n_bytes

    @property
    def word_perplexity(self) -> float | None:
        """The exponential of the loss per word in nats; `None` if there are no words."""
        return compute_perplexity(self.total_nats / self.n_words) if self.n_words else None

    def to_json(self) -> dict[str, float | None]:
        """Returns all measures, for JSON lines; `None` stands for a mean over no tokens."""
        losses = self.losses
        measures = {
            "tokens": self.tokens,
            "unknown_tokens": self.n_unknown,
            "unknown_share": self.unknown_share,
            "total_nats": self.total_nats,
            "nats_per_token": losses.pop("loss_nats"),
            **losses,
            "bytes": self.n_bytes,
            "bits_per_byte": self.bits_per_byte,
            "words": self.n_words,
            "word_perplexity": self.word_perplexity,
        }
        return replace_nans(measures)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TextScore(TextTotals):
    """The loss of a text and of each of its tokens.

    The other arguments are those of `TextTotals`.

    Args:
        ids: (n,) int32, all tokens of the text.
        nats: (tokens,) float32, -log p of the scored tokens, which are the last ones of `ids`.
    """

    ids: np.ndarray
    nats: np.ndarray

    def __add__(self, other: TextTotals) -> Any:
        return TextTotals(0.0, 0, None, 0) + self + other


def replace_nans(measures: dict[str, Any]) -> dict[str, Any]:
    """Returns the measures of a text for JSON, which has no NaN: `None` instead."""
    return {
        name: None if value is not None and math.isnan(value) else value
        for name, value in measures.items()
    }
