"""Stops: strings of any length that end a text where they occur in the decoded text."""

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError

_NO_IDS = np.zeros(0, np.int32)


class End(NamedTuple):
    """The end of a text within the tokens drawn last.

    Args:
        n_kept: The number of these tokens that the text keeps unchanged.
        rest: (k,) int32, the tokens that replace the next one if a stop ends inside a subword.
    """

    n_kept: int
    rest: np.ndarray = _NO_IDS


class Stops:
    r"""The stops of a generation session.

    A symbol whose text differs from its name, such as "<eos>", the "_" of text8 or "<0x0A>", ends a
    text when it is drawn, and so does a word at level "word". Any other stop is searched for in the
    added text, regardless of token boundaries.

    >>> stops = Stops(Vocabulary("char", tuple("\nabc")), ["\n", "cab"])
    >>> stops.ids, stops.strings
    ((0,), (b'cab',))

    Attributes:
        ids: The tokens that end a text, which the compiled loop finds.
        strings: The UTF-8 strings that end a text, which a `StopFinder` searches for.

    Raises:
        UserError: If a stop is empty, or no text of the vocabulary can contain it.
    """

    def __init__(self, vocabulary: Vocabulary, stops: Iterable[str]):
        self.vocabulary = vocabulary
        read = dict.fromkeys(_read_stop(vocabulary, stop) for stop in stops)
        self.ids = tuple(token for token, _ in read if token is not None)
        self.strings = tuple(string for _, string in read if string is not None)


class StopFinder:
    """Finds stop strings in the text after the token `last_id` while it is being generated."""

    def __init__(self, stops: Stops, last_id: int):
        self._vocabulary = stops.vocabulary
        self._strings = stops.strings
        self._ids = stops.ids
        # Bytes of an unfinished stop.
        self._max_pending = max(map(len, stops.strings), default=1) - 1
        self._pending = b""
        self._last_id = last_id

    def find_end(self, ids: np.ndarray) -> End | None:
        """Searches the next tokens, (n,) int32, and returns the first end; `None` if there is none.

        After an end, pass the tokens that follow it to the next call; no stop begins before them.
        """
        if not self._strings or not len(ids):
            return None
        last_id, self._last_id = self._last_id, int(ids[-1])
        new = self._spell(last_id, ids)
        text = self._pending + new
        ends = [text.find(stop) + len(stop) for stop in self._strings if stop in text]
        if not ends:
            unfinished = text[max(len(text) - self._max_pending, 0) :]
            self._pending = b"" if self._last_id in self._ids else unfinished
            return None
        end = self._locate(last_id, ids, min(ends) - len(self._pending))
        self._pending = b""
        kept = ids[: end.n_kept].tolist() + end.rest.tolist()
        self._last_id = kept[-1] if kept else last_id
        return end

    def _locate(self, last_id: int, ids: np.ndarray, size: int) -> End:
        """Returns the `End` after the first `size` bytes of the tokens' text."""
        n_kept, n_bytes = 0, 0
        while True:
            n_next = len(self._spell(last_id, ids[: n_kept + 1]))
            if n_next >= size:
                break
            n_kept, n_bytes = n_kept + 1, n_next
        if n_next == size or self._vocabulary.level == "word":  # words are not cut
            return End(n_kept + 1)
        piece = self._vocabulary.decode_bytes(ids[n_kept : n_kept + 1])[: size - n_bytes]
        return End(n_kept, self._vocabulary.codec.encode(piece).ids)

    def _spell(self, last_id: int, ids: np.ndarray) -> bytes:
        """Returns the text of tokens after a token, including the space between two words."""
        head = self._vocabulary.decode_bytes([last_id])
        return self._vocabulary.decode_bytes([last_id, *ids.tolist()])[len(head) :]


def find_token(vocabulary: Vocabulary, text: str) -> int | None:
    """Returns the id of a text that is a single, known token; `None` for other texts."""
    try:
        ids = vocabulary.encode(text).tolist()
    except (UserError, UnicodeError):
        return None
    if len(ids) != 1 or vocabulary.symbols[ids[0]] == vocabulary.unknown:
        return None
    return int(ids[0])


def match_case(vocabulary: Vocabulary, stop: str) -> str:
    """Returns a stop as it occurs in texts: in lower case if the vocabulary is."""
    return stop.lower() if vocabulary.lower_case else stop


def _read_stop(vocabulary: Vocabulary, stop: str) -> tuple[int | None, bytes | None]:
    """Returns the token that ends a text at this stop and the string to search for, if any."""
    if not isinstance(stop, str) or not stop:
        raise UserError(f"`stops` must be texts of at least one character. Received: {stop!r}")
    # At level "byte", symbols are numbers, but "10" means the text of two digits, not a line break.
    has_names = vocabulary.level != "byte"
    token = vocabulary.find_id(stop) if has_names else None
    if token is None:
        stop = match_case(vocabulary, stop)
        token = find_token(vocabulary, stop)
    string = stop.encode("utf-8", errors="surrogatepass")
    if token is not None:
        if vocabulary.decode_bytes([token]) == string:
            # The text of a subword may also be part of another subword, or span several.
            return token, string if vocabulary.level == "subword" else None
        if has_names and vocabulary.find_id(stop) is not None:
            return token, None
    if not _can_be_written(vocabulary, stop):
        raise UserError(
            "`stops` must be symbols of the vocabulary or texts that can be written with them. "
            f"Received: {stop!r}"
        )
    return None, string


def _can_be_written(vocabulary: Vocabulary, text: str) -> bool:
    """Returns whether a text of the vocabulary may contain the given text."""
    if vocabulary.level == "word":
        return _can_be_words(vocabulary, text)
    try:
        encoded = vocabulary.codec.encode(
            text.encode("utf-8", errors="surrogatepass" if vocabulary.level == "char" else "strict")
        )
    except UnicodeError:
        return False
    return not encoded.unknown


def _can_be_words(vocabulary: Vocabulary, text: str) -> bool:
    """Returns whether words of the vocabulary and the spaces between them may contain a text."""
    marks = {vocabulary.line_start, vocabulary.line_end} - {None}
    if ("\n" in text and not marks) or re.search(r" \s|\s ", text):
        return False  # a single space or line breaks separate words
    words = set(vocabulary.symbols) - marks
    first, *inner = re.split("[ \n]", text)
    if not inner:
        return any(first in word for word in words)
    *inner, last = inner
    return (
        (not first or any(word.endswith(first) for word in words))
        and all(not word or word in words for word in inner)
        and (not last or any(word.startswith(last) for word in words))
    )
