"""The symbols of a data set and their ids."""

import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np

from txl_tf.data.characters import CharacterCodec
from txl_tf.data.codec import Codec, Encoded
from txl_tf.data.learning import LearningOptions, learn_fields
from txl_tf.data.levels import LEVELS, LEVELS_OF_FIELD, SYMBOL_RULES, Level
from txl_tf.data.subwords import BYTES, FIRST_BYTE, NEWLINE, UNKNOWN, SubwordCodec
from txl_tf.data.words import WordCodec
from txl_tf.errors import UserError


@dataclass(frozen=True)
class Vocabulary:
    """The symbols of a text, in id order, and how a text is split into them.

    >>> vocabulary = Vocabulary("char", ("_", "e", "s"), space="_")
    >>> vocabulary.encode("see es")
    array([2, 1, 1, 0, 1, 2], dtype=int32)
    >>> vocabulary.decode([2, 1, 1, 0, 1, 2])
    'see es'

    Levels "byte", "char" and "subword" are lossless: `decode` gives back what `encode` was given,
    bar `lower_case` and unknown symbols. At level "word", white space is not kept but for line
    breaks, and those only with a `line_end`.

    Args:
        level: "byte": a symbol is the decimal number of a byte, "10"; "char": it is one character
            (a Unicode code point); "word": it is a word, and a text is split on white space;
            "subword": it is a piece of a word, and a SentencePiece model splits a text.
        symbols: The symbols; the place of a symbol is its id.
        space: At level "char", the symbol that stands for the space (U+0020); text8 uses "_".
            The character "_" itself is then unknown. `None`: the space is a symbol as any other.
        unknown: At levels "char" and "word", the symbol that stands for all that are not known.
            `None`: those are an error.
        lower_case: At levels "word" and "subword", whether texts are put into lower case.
        line_start: At level "word", the symbol that stands before each line.
        line_end: At level "word", the symbol that stands for a line break.
        sentencepiece: At level "subword", the SentencePiece model, base64.

    Raises:
        UserError: If the level is unknown, a symbol is empty, repeated or not of its level, or
            another argument is against its rule.
    """

    level: Level
    symbols: tuple[str, ...]
    space: str | None = None
    unknown: str | None = None
    lower_case: bool = False
    line_start: str | None = None
    line_end: str | None = None
    sentencepiece: str | None = None

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise UserError(f"`level` must be one of {LEVELS}. Received: level={self.level!r}")
        for name, levels in LEVELS_OF_FIELD.items():
            value = getattr(self, name)
            if value and self.level not in levels:
                raise UserError(
                    f"`{name}` is for level {' or '.join(map(repr, levels))}. "
                    f"Received: {name}={value!r}, level={self.level!r}"
                )
        if (self.level == "subword") != (self.sentencepiece is not None):
            raise UserError(
                "`sentencepiece` must be given at level 'subword'. "
                f"Received: sentencepiece={self.sentencepiece!r}, level={self.level!r}"
            )
        _check_symbols(self.level, self.symbols)
        for name in ("space", "unknown", "line_start", "line_end"):
            value = getattr(self, name)
            if value is not None and value not in self._id_of_symbol:
                raise UserError(f"`{name}` must be one of the symbols. Received: {name}={value!r}")
        if self.space not in (None, " ") and " " in self.symbols:
            raise UserError(
                "`symbols` must not hold ' ' where `space` stands for it. "
                f"Received: space={self.space!r}"
            )

    @classmethod
    def learn(cls, level: Level, texts: Iterable[str | bytes], **options: Any) -> Self:
        """Counts the symbols of `texts`; ids go by falling count.

        Equal counts keep the order of first appearance.

        >>> Vocabulary.learn("word", ["b a b", "c a"]).symbols
        ('b', 'a', 'c')

        Args:
            level: "byte", "char", "word" or "subword".
            texts: The texts, in order; `bytes` are read as UTF-8. Each is split into words by
                itself, and is whole lines at level "subword".
            **options: As in `txl_tf.data.learning.LearningOptions`.

        Returns:
            The vocabulary of all symbols that occur.

        Raises:
            ValueError: If an option is not for this level.
            UserError: If `space` occurs, `max_symbols` leaves no room for the special symbols, or
                subwords cannot be learnt from the texts.
        """
        encoded = (_to_bytes(level, text) for text in texts)
        return cls(level, **learn_fields(level, encoded, LearningOptions(**options)))

    def __len__(self) -> int:
        return len(self.symbols)

    @property
    def unknown_id(self) -> int | None:
        """The id of `unknown`; `None` if there is no such symbol."""
        return None if self.unknown is None else self._id_of_symbol[self.unknown]

    def find_id(self, symbol: str) -> int | None:
        """Returns the id of a symbol; `None` if it is none of the vocabulary."""
        return self._id_of_symbol.get(symbol)

    def encode(self, text: str | bytes) -> np.ndarray:
        """Turns a text into ids.

        Args:
            text: The text. A `str` is encoded as UTF-8; `bytes` must be UTF-8 unless the level is
                "byte".

        Returns:
            The ids, (n,) int32.

        Raises:
            UserError: If a symbol is not in the vocabulary, which has none for those. The offset
                it names counts symbols: bytes, characters or words.
            UnicodeError: If the text cannot be decoded, or encoded, as UTF-8.
        """
        encoded = self.codec.encode(_to_bytes(self.level, text))
        if encoded.unknown and self.unknown is None:
            raise UserError(self._describe_unknown(encoded))
        return encoded.ids

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Turns ids into a text.

        Args:
            ids: The ids, (n,) of integers.

        Returns:
            The text. At levels "byte" and "subword", bytes that are no UTF-8 become U+FFFD; at
            level "word", the words are joined with spaces, and lines end where `line_end` is, or
            without one where `line_start` follows a word.

        Raises:
            ValueError: If an id is out of range, or `ids` are not a row of integers.
        """
        errors = "surrogatepass" if self.level in ("char", "word") else "replace"
        return self.codec.decode(self._check_ids(ids)).decode("utf-8", errors=errors)

    def decode_bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """Turns ids into the bytes they stand for.

        Args:
            ids: The ids, (n,) of integers.

        Returns:
            The bytes, at level "byte" exactly as they were before `encode`; else UTF-8, though a
            cut of subwords may end inside a character.

        Raises:
            ValueError: If an id is out of range, or `ids` are not a row of integers.
        """
        return self.codec.decode(self._check_ids(ids))

    @cached_property
    def codec(self) -> Codec:
        """What encodes and decodes at this level."""
        unknown_id = -1 if self.unknown_id is None else self.unknown_id
        if self.level == "byte":
            return CharacterCodec([int(symbol) for symbol in self.symbols], is_bytes=True)
        if self.level == "char":
            characters = (" " if symbol == self.space else symbol for symbol in self.symbols)
            codes = [ord(character) for character in characters]
            return CharacterCodec(codes, is_bytes=False, unknown_id=unknown_id)
        if self.level == "word":
            return WordCodec(
                self.symbols,
                lower_case=self.lower_case,
                unknown_id=unknown_id,
                line_start=self.line_start,
                line_end=self.line_end,
            )
        assert self.sentencepiece is not None
        return SubwordCodec(self.symbols, self.sentencepiece, lower_case=self.lower_case)

    def to_json(self) -> dict[str, Any]:
        """Returns the vocabulary as a JSON object; what is `None` or false may be left out."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        data["symbols"] = list(data.pop("symbols"))  # last: they are many
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Reads what `to_json` returned.

        Args:
            data: An object with the names of the class's arguments.

        Returns:
            The vocabulary.

        Raises:
            ValueError: If "level" or "symbols" is missing, a key is unknown, or a value is against
                the class's rules.
        """
        known = {field.name for field in fields(cls)}
        if not {"level", "symbols"} <= set(data) <= known:
            raise ValueError(
                f"A vocabulary must have the keys 'level' and 'symbols', and of {sorted(known)} "
                f"what it needs. Received: {sorted(data)}"
            )
        return cls(**{**data, "symbols": tuple(data["symbols"])})

    @cached_property
    def _id_of_symbol(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols)}

    def _describe_unknown(self, encoded: Encoded) -> str:
        # A word may be megabytes long.
        examples = ", ".join(map(reprlib.repr, list(encoded.unknown)[:3]))
        return (
            f"`text` must hold known symbols only ({len(self)} {self.level}s are known). "
            f"Received: {encoded.unknown.total()} unknown ({examples}), the first at offset "
            f"{int(encoded.ids.argmin())}"
        )

    def _check_ids(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        array = np.asarray(ids)
        if array.size == 0:
            return np.zeros(0, np.int32)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(
                "`ids` must be a row of integers. "
                f"Received: shape={array.shape}, dtype={array.dtype}"
            )
        wrong = (array < 0) | (array >= len(self))
        if wrong.any():
            offset = int(wrong.argmax())
            raise ValueError(
                f"`ids` must be at least 0 and below {len(self)}. "
                f"Received: id {array[offset]} at offset {offset}"
            )
        return array


def _to_bytes(level: str, text: str | bytes) -> bytes:
    """Returns a text as bytes, which at all levels but "byte" are checked to be UTF-8."""
    if isinstance(text, str):
        # A lone surrogate is a character, but nothing that tensorflow takes.
        return text.encode("utf-8", errors="surrogatepass" if level == "char" else "strict")
    if level != "byte":
        text.decode("utf-8")
    return text


def _check_symbols(level: str, symbols: tuple[str, ...]) -> None:
    if len(set(symbols)) < len(symbols):
        repeated = next(symbol for symbol, count in Counter(symbols).items() if count > 1)
        raise UserError(f"`symbols` must all differ. Received twice: {repeated!r}")
    rule, is_of_level = SYMBOL_RULES[level]
    for i, symbol in enumerate(symbols):
        if not is_of_level(symbol):
            raise UserError(f"Each of `symbols` must be {rule}. Received: {symbol!r} as symbol {i}")
    if level == "subword" and symbols[: FIRST_BYTE + 256] != (UNKNOWN, NEWLINE, *BYTES):
        raise UserError(
            f"`symbols` of subwords must begin with {UNKNOWN!r}, {NEWLINE!r} and the 256 bytes. "
            f"Received: {symbols[:3]}, ..."
        )
