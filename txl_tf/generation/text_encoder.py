"""Encodes and validates the texts and symbols that users pass."""

import reprlib
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np

from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.generation.stops import Stops, find_token
from txl_tf.scoring.text_chunks import TextChunk, TextName, make_text_chunk


def check_list(name: str, items: Any, *, has_order: bool = True) -> None:
    """Checks that an argument is list-like: not a mapping and, if order matters, not a set."""
    others = (Mapping, Set) if has_order else Mapping
    if isinstance(items, others) or not isinstance(items, Iterable):
        raise UserError(f"`{name}` must be a list. Received: {reprlib.repr(items)}")


class TextEncoder:
    """Encodes texts with a vocabulary, and validates ids below `n_token`.

    Raises:
        UserError: In all methods, if an argument is invalid, or a text is given without a
            vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary | None, n_token: int):
        self._vocabulary = vocabulary
        self._n_token = n_token

    def encode(self, text: str | bytes | np.ndarray) -> np.ndarray:
        """Returns the ids, (n,) int32, of a text, which may itself be given as ids."""
        if isinstance(text, str | bytes):
            try:
                return self._get_vocabulary().encode(text)
            except UnicodeError as error:
                raise UserError(f"a text is not UTF-8: {error}") from error
        ids = np.asarray(text)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise UserError(
                "a text must be a `str` or a one-dimensional array of ids. "
                f"Received: shape={ids.shape}, dtype={ids.dtype}"
            )
        wrong = np.flatnonzero((ids < 0) | (ids >= self._n_token))
        if wrong.size:
            raise UserError(
                f"ids must be at least 0 and below {self._n_token}. "
                f"Received: id {ids[wrong[0]]} at offset {wrong[0]}"
            )
        return ids.astype(np.int32)

    def make_chunk(self, text: str | bytes | np.ndarray, number: int) -> TextChunk:
        """Returns a whole text as one chunk; `number` is its number among the texts."""
        ids, name = self.encode(text), TextName("", number)
        if not isinstance(text, str | bytes):
            return TextChunk(ids, None, None, (0, 0), name)
        encoded = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        return make_text_chunk(self._get_vocabulary(), ids, encoded, name)

    def make_stops(self, stops: str | Iterable[str]) -> Stops | None:
        """Returns the stops; `None` if there are none."""
        check_list("stops", stops, has_order=False)
        listed = [stops] if isinstance(stops, str) else list(stops)
        return Stops(self._get_vocabulary(), listed) if listed else None

    def find_id(self, symbol: str) -> int:
        """Returns the id of a symbol, such as "<unk>", or of a text of one token, such as ".".

        At level "byte", where symbols are numbers, "4" means the digit.
        """
        vocabulary = self._get_vocabulary()
        by_text, by_name = find_token(vocabulary, symbol), vocabulary.find_id(symbol)
        for found in (by_text, by_name) if vocabulary.level == "byte" else (by_name, by_text):
            if found is not None:
                return found
        raise UserError(f"{symbol!r} is neither a symbol of the vocabulary nor a text of one token")

    def find_banned(self, banned: str | Iterable[str] | None) -> list[int]:
        """Returns the ids of symbols or one-token texts; for `None`, that of the unknown symbol."""
        if banned is None:
            unknown = self._vocabulary.unknown if self._vocabulary else None
            banned = unknown or ()
        check_list("banned", banned, has_order=False)
        return [self.find_id(each) for each in ([banned] if isinstance(banned, str) else banned)]

    def _get_vocabulary(self) -> Vocabulary:
        if self._vocabulary is None:
            raise UserError("the run has no vocabulary: pass ids, not text")
        return self._vocabulary
