"""The scores of texts, from the losses of the token streams that contain them."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.scoring.metrics import Score, add_known, compute_perplexity
from txl_tf.scoring.text_chunks import TextChunk, TextName
from txl_tf.scoring.token_streams import Piece


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
class _Text:
    """A text that is being scored."""

    name: TextName
    keeps_tokens: bool
    vocabulary: Vocabulary | None
    n_ids: int = 0  # number of ids taken from the chunks
    n_read: int = 0  # number of ids that the scorer has read
    is_whole: bool = False  # whether all ids were taken
    tokens: int = 0
    total_nats: float = 0.0
    n_bytes: int | None = 0
    n_words: int | None = 0
    n_unknown: int = 0
    first: tuple[int, int] | None = None  # number of bytes and words of the first token
    ids: list[np.ndarray] = field(default_factory=list)
    nats: list[np.ndarray] = field(default_factory=list)

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
        empty = np.zeros(0, np.int32), np.zeros(0, np.float32)
        ids, nats = (
            np.concatenate([none, *arrays])
            for none, arrays in zip(empty, (self.ids, self.nats), strict=True)
        )
        return TextScore(**vars(totals), ids=ids, nats=nats)


@dataclass
class _Stream:
    """A token stream, which assigns the losses of its tokens to its texts."""

    chunks: Iterable[TextChunk]
    prefix: np.ndarray  # (p,) int32, ids that are read before the first text
    vocabulary: Vocabulary | None
    keeps_tokens: bool
    is_done: bool = False
    n_prefix_read: int = 0
    texts: deque[_Text] = field(default_factory=deque)  # those not completely scored
    scores: deque[tuple[TextName, TextTotals]] = field(default_factory=deque)

    def iterate_ids(self) -> Iterator[np.ndarray]:
        """Yields the ids of the stream and keeps a record of the texts that they belong to."""
        yield self.prefix
        for chunk in self.chunks:
            if chunk.begins is not None:
                if self.texts:
                    self.texts[-1].is_whole = True
                self.texts.append(_Text(chunk.begins, self.keeps_tokens, self.vocabulary))
            self.texts[-1].extend(chunk)
            yield chunk.ids
        if self.texts:
            self.texts[-1].is_whole = True

    def read(self, piece: Piece) -> None:
        """Takes the next losses and appends the scores of the texts that they complete."""
        ids, nats, self.is_done = piece.ids, piece.nats, piece.is_last
        skipped = min(len(self.prefix) - self.n_prefix_read, len(ids))
        self.n_prefix_read += skipped
        while True:
            n_unscored = len(ids) - len(nats)
            ids, nats = ids[skipped:], nats[max(skipped - n_unscored, 0) :]
            if not self.texts:
                return
            text = self.texts[0]
            skipped = min(text.n_ids - text.n_read, len(ids))
            n_unscored = len(ids) - len(nats)
            text.read(ids[:skipped], nats[: max(skipped - n_unscored, 0)])
            if not text.is_whole or text.n_read < text.n_ids:
                return
            self.scores.append((text.name, self.texts.popleft().finish()))


class StreamScorer(Protocol):
    """A scorer of token streams, such as `Scorer`."""

    def score(
        self, streams: Iterable[Iterable[np.ndarray]], *, in_order: bool = False
    ) -> Iterator[Piece]:
        """Scores streams; see `Scorer.score`."""


def score_texts(
    scorer: StreamScorer,
    streams: Iterable[Iterable[TextChunk]],
    *,
    prefix: Sequence[int] | np.ndarray = (),
    vocabulary: Vocabulary | None = None,
    keep_tokens: bool = True,
    in_order: bool = False,
    report: Callable[[int], object] = lambda n_ids: None,
) -> Iterator[tuple[TextName, TextTotals]]:
    """Scores texts.

    Args:
        scorer: The scorer.
        streams: Chunks of texts. A stream begins with an empty memory, which is carried from each
            of its texts to the next.
        prefix: (p,) ids that are read before each stream and not scored.
        vocabulary: The vocabulary, to count unknown tokens; `None` if only ids are known.
        keep_tokens: Whether to yield `TextScore`, with ids and losses, instead of `TextTotals`.
        in_order: See `Scorer.score`.
        report: Called with the number of ids after each segment.

    Yields:
        The name and the score of each text, in order.
    """
    opened: dict[int, _Stream] = {}
    prefix_ids = np.asarray(prefix, np.int32)

    def open_streams() -> Iterator[Iterator[np.ndarray]]:
        for number, chunks in enumerate(streams):
            opened[number] = _Stream(chunks, prefix_ids, vocabulary, keep_tokens)
            yield opened[number].iterate_ids()

    current = 0
    for piece in scorer.score(open_streams(), in_order=in_order):
        report(len(piece.ids))
        opened[piece.stream].read(piece)
        while current in opened:
            stream = opened[current]
            while stream.scores:
                yield stream.scores.popleft()
            if not stream.is_done:
                break
            del opened[current]
            current += 1


def sum_scores(scores: Iterable[TextTotals]) -> TextTotals:
    """Returns the total loss of texts of one vocabulary."""
    total: TextTotals | None = None
    for score in scores:
        total = score if total is None else total + score
    return TextTotals(0.0, 0, None, 0) if total is None else total
