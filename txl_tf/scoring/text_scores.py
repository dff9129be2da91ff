"""The scores of texts."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.scoring.metrics import Score, compute_perplexity, sum_losses
from txl_tf.scoring.text_chunks import TextChunk, TextName


@dataclass(frozen=True, repr=False)
class TextTotals(Score):
    """The loss of one or more texts.

    Every token with context is scored: all but the first if a text is read with an empty memory.
    The first four arguments are those of `Score`.

    Args:
        n_bytes: Number of bytes of the text in UTF-8, without those of a first token that was not
            scored; `None` if only the ids are known.
        n_words: Number of words of the text, split at white space, without a word inside such a
            first token; at level "word", the number of scored tokens, including line marks; `None`
            if only the ids are known.
    """

    n_bytes: int | None = 0
    n_words: int | None = 0

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of the text, at every level.

        `None` if there are no bytes, or if a token is unknown: the bytes that such a token stands
        for were not scored.
        """
        if not self.n_bytes or self.n_unknown:
            return None
        return self.total_nats / math.log(2) / self.n_bytes

    @property
    def word_perplexity(self) -> float | None:
        """The exponential of the loss per word in nats; `None` if there are no words."""
        return compute_perplexity(self.total_nats / self.n_words) if self.n_words else None

    def to_json(self) -> dict[str, float | None]:
        """Returns all measures, for JSON lines: `None` stands for a mean over no token."""
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


class Text:
    """A text that is being scored."""

    def __init__(self, name: TextName, vocabulary: Vocabulary | None, *, keeps_tokens: bool):
        self.name = name
        self.n_ids = 0  # number of ids taken from the chunks
        self.n_cut = 0  # number of ids in segments
        self.is_whole = False  # whether all ids were taken
        self._vocabulary = vocabulary
        self._keeps_tokens = keeps_tokens
        self._n_read = 0  # number of ids with losses
        self._first = (0, 0)  # number of bytes and words of the first token
        self._ids = [np.zeros(0, np.int32)]
        self._nats = [np.zeros(0, np.float32)]
        self._totals = TextTotals(**vars(sum_losses(self._nats[0], self._ids[0], vocabulary)))

    @property
    def is_cut(self) -> bool:
        """Whether all ids are in segments."""
        return self.is_whole and self.n_cut == self.n_ids

    @property
    def is_finished(self) -> bool:
        """Whether all losses are there."""
        return self.is_whole and self._n_read == self.n_ids

    def extend(self, chunk: TextChunk) -> None:
        """Adds the counts of the text's next chunk."""
        if not self.n_ids and len(chunk.ids):
            self._first = chunk.first
        self.n_ids += len(chunk.ids)
        self._totals += TextTotals(0.0, 0, None, 0, chunk.n_bytes, chunk.n_words)

    def read(self, ids: np.ndarray, nats: np.ndarray) -> None:
        """Adds the losses of the next ids; `nats` lacks the first one if it was not scored."""
        self._n_read += len(ids)
        score = sum_losses(nats, ids[len(ids) - len(nats) :], self._vocabulary)
        self._totals += TextTotals(**vars(score))
        if self._keeps_tokens:
            self._ids.append(ids)
            self._nats.append(nats)

    def finish(self) -> TextTotals:
        """Returns the score."""
        totals = self._totals
        if totals.tokens < self.n_ids:
            n_bytes, n_words = self._first
            totals += TextTotals(0.0, 0, None, 0, -n_bytes, -n_words)
        if not self._keeps_tokens:
            return totals
        ids, nats = np.concatenate(self._ids), np.concatenate(self._nats)
        return TextScore(**vars(totals), ids=ids, nats=nats)
