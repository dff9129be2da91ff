"""The streams of texts that the rows of a batch read, and the losses of these texts."""

from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.scoring.metrics import sum_losses
from txl_tf.scoring.text_chunks import TextChunk, TextName
from txl_tf.scoring.text_scores import TextScore, TextTotals


class Text:
    """A text being scored; without a name, it stands for tokens that belong to no text."""

    def __init__(self, name: TextName | None, vocabulary: Vocabulary | None, keep_tokens: bool):
        self.name = name
        self.n_missing = 0  # ids whose losses have not arrived yet
        self._vocabulary = vocabulary
        self._keep_tokens = keep_tokens
        self._n_ids = 0
        self._first = (0, 0)  # the numbers of bytes and words of the first token
        self._ids = [np.zeros(0, np.int32)]
        self._nats = [np.zeros(0, np.float32)]
        self._totals = TextTotals(**vars(sum_losses(self._nats[0], self._ids[0], vocabulary)))

    def extend(self, chunk: TextChunk) -> None:
        """Adds the text's next chunk."""
        if not self._n_ids:
            self._first = chunk.first
        self._n_ids += len(chunk.ids)
        self.n_missing += len(chunk.ids)
        self._totals += TextTotals(0.0, 0, None, 0, chunk.n_bytes, chunk.n_words)

    def read(self, ids: np.ndarray, nats: np.ndarray) -> None:
        """Adds the next ids and their losses; a first token without context has none."""
        self.n_missing -= len(ids)
        if len(nats):
            self._totals += TextTotals(**vars(sum_losses(nats, ids, self._vocabulary)))
        elif len(ids):
            n_bytes, n_words = self._first
            self._totals += TextTotals(0.0, 0, None, 0, -n_bytes, -n_words)
        if self._keep_tokens:
            self._ids.append(ids)
            self._nats.append(nats)

    def finish(self) -> TextTotals:
        """Returns the score."""
        if not self._keep_tokens:
            return self._totals
        ids, nats = np.concatenate(self._ids), np.concatenate(self._nats)
        return TextScore(**vars(self._totals), ids=ids, nats=nats)


class TextStream:
    """The texts that a row reads, carrying the memory from each to the next.

    Args:
        chunks: The chunks of the texts, which are consumed as needed. Tokens before the first text
            belong to no text.
        make_text: Makes the text with a given name.
        n_ahead: The maximum number of inputs in a segment.

    Attributes:
        ids: (n,) int32, the next input and the ids after it that have been loaded: more than
            `n_ahead` of them unless the chunks have ended.
        is_ended: Whether there are no more ids.
        is_fresh: Whether nothing has been read yet.
        scores: The names and scores of texts whose losses are complete, for the caller to pop.
    """

    def __init__(
        self,
        chunks: Iterable[TextChunk],
        make_text: Callable[[TextName | None], Text],
        n_ahead: int,
    ):
        self.ids = np.zeros(0, np.int32)
        self.is_ended = False
        self.is_fresh = True
        self.scores: deque[tuple[TextName, TextTotals]] = deque()
        self._chunks = iter(chunks)
        self._make_text = make_text
        self._n_ahead = n_ahead
        self._texts: deque[Text] = deque()  # those whose losses are not complete
        self._fill()
        self._give(self.ids[:1], np.zeros(0, np.float32))  # it has no context

    @property
    def n_inputs(self) -> int:
        """The number of known ids that have a target."""
        return max(len(self.ids) - 1, 0)

    @property
    def is_done(self) -> bool:
        """Whether the whole stream has been read."""
        return self.is_ended and not self.n_inputs

    def read(self, nats: np.ndarray) -> None:
        """Records the losses of the next targets, (n,) float32, and moves past n inputs."""
        targets = self.ids[1 : len(nats) + 1]
        self.ids = self.ids[len(nats) :]
        self.is_fresh = False
        self._fill()
        self._give(targets, nats)

    def _fill(self) -> None:
        """Loads chunks until more than a segment and its last target are known."""
        n_wanted = self._n_ahead + 2
        held, n_held = [self.ids], len(self.ids)
        while n_held < n_wanted and (chunk := next(self._chunks, None)) is not None:
            if chunk.begins is not None or not self._texts:
                self._texts.append(self._make_text(chunk.begins))
            self._texts[-1].extend(chunk)
            held.append(chunk.ids)
            n_held += len(chunk.ids)
        self.is_ended = n_held < n_wanted
        if len(held) > 1:
            self.ids = np.concatenate(held)

    def _give(self, ids: np.ndarray, nats: np.ndarray) -> None:
        """Passes ids and losses to the texts that they belong to."""
        while self._texts:
            text = self._texts[0]
            n_ids = text.n_missing
            text.read(ids[:n_ids], nats[:n_ids])
            ids, nats = ids[n_ids:], nats[n_ids:]
            may_continue = len(self._texts) == 1 and not self.is_ended
            if text.n_missing or may_continue:
                return
            self._texts.popleft()
            if text.name is not None:
                self.scores.append((text.name, text.finish()))
