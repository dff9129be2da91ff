"""The scores of texts."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.scoring.metrics import Score, add_known, compute_perplexity
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

    def __add__(self, other: "TextTotals") -> "TextTotals":
        return TextTotals(
            total_nats=self.total_nats + other.total_nats,
            tokens=self.tokens + other.tokens,
            level=self.level,
            n_unknown=add_known(self.n_unknown, other.n_unknown),
            n_bytes=add_known(self.n_bytes, other.n_bytes),
            n_words=add_known(self.n_words, other.n_words),
        )


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


@dataclass
class Text:
    """A text that is being scored."""

    name: TextName
    vocabulary: Vocabulary | None
    keeps_tokens: bool
    n_ids: int = 0  # number of ids taken from the chunks
    n_cut: int = 0  # number of ids in segments
    n_read: int = 0  # number of ids with losses
    is_whole: bool = False  # whether all ids were taken
    tokens: int = 0
    total_nats: float = 0.0
    n_bytes: int | None = 0
    n_words: int | None = 0
    n_unknown: int = 0
    first: tuple[int, int] | None = None  # number of bytes and words of the first token
    ids: list[np.ndarray] = field(default_factory=list)
    nats: list[np.ndarray] = field(default_factory=list)

    @property
    def is_cut(self) -> bool:
        """Whether all ids are in segments."""
        return self.is_whole and self.n_cut == self.n_ids

    @property
    def is_finished(self) -> bool:
        """Whether all losses are there."""
        return self.is_whole and self.n_read == self.n_ids

    def extend(self, chunk: TextChunk) -> None:
        """Adds the counts of the text's next chunk."""
        if not self.n_ids and len(chunk.ids):
            self.first = chunk.first
        self.n_ids += len(chunk.ids)
        self.n_bytes = add_known(self.n_bytes, chunk.n_bytes)
        self.n_words = add_known(self.n_words, chunk.n_words)

    def read(self, ids: np.ndarray, nats: np.ndarray) -> None:
        """Adds the losses of the next ids; `nats` lacks the first one if it was not scored."""
        self.n_read += len(ids)
        self.tokens += len(nats)
        self.total_nats += float(nats.sum(dtype=np.float64))
        if self.vocabulary is not None and self.vocabulary.unknown_id is not None:
            scored = ids[len(ids) - len(nats) :]
            self.n_unknown += int(np.count_nonzero(scored == self.vocabulary.unknown_id))
        if self.keeps_tokens:
            self.ids.append(ids)
            self.nats.append(nats)

    def finish(self) -> TextTotals:
        """Returns the score."""
        n_bytes, n_words = self.n_bytes, self.n_words
        if self.tokens < self.n_ids and self.first is not None:
            n_bytes = add_known(n_bytes, -self.first[0])
            n_words = add_known(n_words, -self.first[1])
        totals = TextTotals(
            total_nats=self.total_nats,
            tokens=self.tokens,
            level=self.vocabulary.level if self.vocabulary else None,
            n_unknown=self.n_unknown if self.vocabulary else None,
            n_bytes=n_bytes,
            n_words=n_words,
        )
        if not self.keeps_tokens:
            return totals
        ids = np.concatenate([np.zeros(0, np.int32), *self.ids])
        nats = np.concatenate([np.zeros(0, np.float32), *self.nats])
        return TextScore(**vars(totals), ids=ids, nats=nats)


def sum_scores(scores: Iterable[TextTotals]) -> TextTotals:
    """Returns the total loss of texts of one vocabulary."""
    total: TextTotals | None = None
    for score in scores:
        total = score if total is None else total + score
    return TextTotals(0.0, 0, None, 0) if total is None else total
