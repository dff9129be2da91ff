"""The scores of texts: from the losses of token streams to those of the texts in them."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from txl_tf.data.vocabulary import Vocabulary
from txl_tf.evaluation.score import Score, add_known, compute_perplexity
from txl_tf.inference.scoring import Scorer
from txl_tf.inference.text_parts import TextName, TextPart


@dataclass(frozen=True)
class TextTotals(Score):
    """The loss of a text, or of several.

    What is scored is each token that has context: all but the first of a text that is read from an
    empty memory on.

    Args:
        total_nats: as in `Score`, and so are the next three.
        tokens: see there.
        level: see there.
        n_unknown: see there.
        n_bytes: bytes of the text, in UTF-8, less those of a first token that was not scored;
            `None` where only ids are known.
        n_words: words of the text, what is between white space, less one that lies within such a
            token; at level "word" the tokens scored, marks of lines among them; `None` where only
            ids are known.
    """

    n_bytes: int | None = 0
    n_words: int | None = 0

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of the text, at any level.

        `None` where there is no byte, and where a token was unknown: the model was not asked for
        the bytes that such a token stands for.
        """
        if not self.n_bytes or self.n_unknown:
            return None
        return self.total_nats / math.log(2) / self.n_bytes

    @property
    def word_perplexity(self) -> float | None:
        """E to the loss per word; `None` where there is no word."""
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


@dataclass(frozen=True, eq=False, kw_only=True)
class TextScore(TextTotals):
    """The loss of a text, token by token.

    Args:
        total_nats: as in `TextTotals`, and so are the next five.
        tokens: see there.
        level: see there.
        n_unknown: see there.
        n_bytes: see there.
        n_words: see there.
        ids: (n,) int32, all tokens of the text.
        nats: -log p of the last `tokens` of `ids`, (tokens,) float32.
    """

    ids: np.ndarray
    nats: np.ndarray


@dataclass
class _Text:
    """A text whose score is being summed up."""

    name: TextName
    keeps_tokens: bool
    vocabulary: Vocabulary | None
    n_ids: int = 0  # that were taken
    n_read: int = 0  # that were scored, or begin a stream
    is_whole: bool = False  # whether all ids were taken
    tokens: int = 0
    total_nats: float = 0.0
    n_bytes: int | None = 0
    n_words: int | None = 0
    n_unknown: int = 0
    first: tuple[int, int] | None = None  # bytes and words of the first token
    ids: list[np.ndarray] = field(default_factory=list)
    nats: list[np.ndarray] = field(default_factory=list)

    def extend(self, part: TextPart) -> None:
        """Counts what was taken of the text."""
        if not self.n_ids and len(part.ids):
            self.first = part.first
        self.n_ids += len(part.ids)
        self.n_bytes = add_known(self.n_bytes, part.n_bytes)
        self.n_words = add_known(self.n_words, part.n_words)

    def read(self, ids: np.ndarray, nats: np.ndarray) -> None:
        """Counts what was scored of it; `nats` lack the first of `ids` if that was not."""
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
            np.concatenate([none, *parts])
            for none, parts in zip(empty, (self.ids, self.nats), strict=True)
        )
        return TextScore(**vars(totals), ids=ids, nats=nats)


class _Stream:
    """The texts of a stream that are not scored yet, in order.

    Args:
        parts: of these texts.
        prefix: (p,) int32, ids that are read before the first text.
        vocabulary: of the texts; `None` if only ids are known.
        keeps_tokens: whether the scores hold ids and losses of each token.
    """

    def __init__(
        self,
        parts: Iterable[TextPart],
        prefix: np.ndarray,
        vocabulary: Vocabulary | None,
        *,
        keeps_tokens: bool,
    ):
        self._parts = parts
        self._prefix = prefix
        self._vocabulary = vocabulary
        self._keeps_tokens = keeps_tokens
        self._n_skipped = len(prefix)
        self._texts: deque[_Text] = deque()

    def iterate_ids(self) -> Iterator[np.ndarray]:
        """Yields the ids of the stream, and remembers the texts that they are of."""
        yield self._prefix
        for part in self._parts:
            if part.begins is not None:
                if self._texts:
                    self._texts[-1].is_whole = True
                self._texts.append(_Text(part.begins, self._keeps_tokens, self._vocabulary))
            self._texts[-1].extend(part)
            yield part.ids
        if self._texts:
            self._texts[-1].is_whole = True

    def read(self, ids: np.ndarray, nats: np.ndarray) -> Iterator[tuple[TextName, TextTotals]]:
        """Takes a piece of the stream and yields the scores of the texts that it ends."""
        skipped = min(self._n_skipped, len(ids))
        self._n_skipped -= skipped
        while True:
            n_unscored = len(ids) - len(nats)
            ids, nats = ids[skipped:], nats[max(skipped - n_unscored, 0) :]
            if not self._texts:
                return
            text = self._texts[0]
            skipped = min(text.n_ids - text.n_read, len(ids))
            n_unscored = len(ids) - len(nats)
            text.read(ids[:skipped], nats[: max(skipped - n_unscored, 0)])
            if not text.is_whole or text.n_read < text.n_ids:
                return
            yield text.name, self._texts.popleft().finish()


def score_texts(
    scorer: Scorer,
    streams: Iterable[Iterable[TextPart]],
    *,
    prefix: Sequence[int] | np.ndarray = (),
    vocabulary: Vocabulary | None = None,
    keep_tokens: bool = True,
    in_order: bool = False,
    report: Callable[[int], object] = lambda n_ids: None,
) -> Iterator[tuple[TextName, TextTotals]]:
    """Scores the texts in some streams.

    Args:
        scorer: scores the streams.
        streams: texts that are read one after the other, with memory carried from one to the next;
            each begins with an empty memory.
        prefix: (p,) ids that are read before each stream, and not scored.
        vocabulary: of the texts, for their unknown tokens; `None` if only ids are known.
        keep_tokens: whether to yield each a `TextScore`, with ids and losses; else `TextTotals`.
        in_order: as `Scorer.score`'s.
        report: called with the number of ids that were read, each time.

    Yields:
        Names and scores of the texts, in order.
    """
    opened: dict[int, _Stream] = {}
    found: dict[int, list[tuple[TextName, TextTotals]]] = {}  # of streams that wait for others
    ended: set[int] = set()
    prefix_ids = np.asarray(prefix, np.int32)

    def open_streams() -> Iterator[Iterator[np.ndarray]]:
        for number, parts in enumerate(streams):
            opened[number] = _Stream(parts, prefix_ids, vocabulary, keeps_tokens=keep_tokens)
            yield opened[number].iterate_ids()

    current = 0
    for piece in scorer.score(open_streams(), in_order=in_order):
        report(len(piece.ids))
        scores = opened[piece.stream].read(piece.ids, piece.nats)
        found.setdefault(piece.stream, []).extend(scores)
        if piece.is_last:
            del opened[piece.stream]
            ended.add(piece.stream)
        yield from found.pop(current, ())
        while current in ended:
            ended.remove(current)
            current += 1
            yield from found.pop(current, ())


def sum_scores(scores: Iterable[TextTotals]) -> TextTotals:
    """Returns the loss of all texts together.

    Args:
        scores: of texts of one vocabulary.
    """
    total: TextTotals | None = None
    for score in scores:
        total = score if total is None else total + score
    return TextTotals(0.0, 0, None, 0) if total is None else total
