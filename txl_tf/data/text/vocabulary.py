"""The symbols of a data set and their ids, and the levels at which a text is split into symbols."""

import json
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np

from txl_tf.data.text.characters import CharacterCodec
from txl_tf.data.text.codec import Codec, Encoded
from txl_tf.data.text.learning import LEVELS_OF_FIELD, LearningOptions, learn_fields
from txl_tf.data.text.subwords import BYTES, FIRST_BYTE, NEWLINE, UNKNOWN, SubwordCodec
from txl_tf.data.text.text_files import read_small_text
from txl_tf.data.text.words import WHITE_SPACE, WordCodec
from txl_tf.errors import UserError, explain_errors

Level = Literal["byte", "char", "word", "subword"]
CHARACTER_LEVELS = ("byte", "char")  # at which a token is a character
LEVELS: tuple[str, ...] = get_args(Level)
EVERY_BYTE = tuple(map(str, range(256)))  # the symbols of level "byte"
_NUMBERS = frozenset(EVERY_BYTE)
_IMPOSSIBLE = re.compile(r"[\ud800-\udfff]|.\0|\0.", re.DOTALL)
# What may follow a word in a file of words, such as a count or the logarithm of a probability.
_COUNT = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?", re.IGNORECASE)
# The rule for a symbol, in words and as a function.
SYMBOL_RULES: dict[str, tuple[str, Callable[[str], bool]]] = {
    "byte": ("the decimal number of a byte", _NUMBERS.__contains__),
    "char": ("one character", lambda symbol: len(symbol) == 1),
    "word": (
        "a word without white space",
        lambda symbol: bool(symbol) and not WHITE_SPACE.search(symbol),
    ),
    "subword": ("a piece of a text", bool),
}


@dataclass(frozen=True)
class Vocabulary:
    """The symbols of a text, ordered by id, and how a text is split into them.

    In the 2019 code: `Vocab`.

    >>> vocabulary = Vocabulary("char", ("_", "e", "s"), space="_")
    >>> vocabulary.encode("see es")
    array([2, 1, 1, 0, 1, 2], dtype=int32)
    >>> vocabulary.decode([2, 1, 1, 0, 1, 2])
    'see es'

    Levels "byte", "char" and "subword" are lossless: `decode` restores the text that was encoded,
    except for `lower_case` and unknown symbols. Level "word" keeps no white space except line
    breaks, and these only with a `line_end`.

    Args:
        level: The kind of symbols. "byte": the decimal number of a byte, such as "10". "char": a
            character (a Unicode code point). "word": a word; texts are split on white space.
            "subword": a piece of a word; a SentencePiece model splits texts.
        symbols: The symbols; the index of a symbol is its id.
        space: At level "char", the symbol for the space (U+0020); text8 uses "_". The character
            "_" itself is then unknown. With `None`, the space is a symbol like any other.
        unknown: At levels "char" and "word", the symbol that replaces all unknown ones. With
            `None`, an unknown symbol raises an error.
        lower_case: At levels "word" and "subword", whether texts are converted to lower case.
        line_start: At level "word", the symbol before each line.
        line_end: At level "word", the symbol for a line break.
        sentencepiece: At level "subword", the SentencePiece model in base64.

    Raises:
        UserError: If the level is unknown; a symbol is empty, repeated or not allowed at this
            level; or another argument is invalid.
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
        if isinstance(self.symbols, list):
            object.__setattr__(self, "symbols", tuple(self.symbols))
        if self.level not in LEVELS:
            raise UserError(f"`level` must be one of {LEVELS}. Received: level={self.level!r}")
        for name, levels in LEVELS_OF_FIELD.items():
            value = getattr(self, name)
            if value and self.level not in levels:
                raise UserError(
                    f"`{name}` needs level {' or '.join(map(repr, levels))}. "
                    f"Received: {name}={value!r}, level={self.level!r}"
                )
        if (self.level == "subword") != (self.sentencepiece is not None):
            raise UserError(
                "`sentencepiece` must be given at level 'subword', and only there. "
                f"Received: sentencepiece={self.sentencepiece!r}, level={self.level!r}"
            )
        _check_symbols(self.level, self.symbols)
        for name in ("space", "unknown", "line_start", "line_end"):
            value = getattr(self, name)
            if value is not None and value not in self._id_of_symbol:
                raise UserError(f"`{name}` must be one of the symbols. Received: {name}={value!r}")
        if self.space not in (None, " ") and " " in self.symbols:
            raise UserError(
                "`symbols` must not contain ' ' if `space` stands for it. "
                f"Received: space={self.space!r}"
            )

    @classmethod
    def learn(cls, level: Level, texts: Iterable[str | bytes], **options: Any) -> Self:
        """Learns a vocabulary from texts.

        Special symbols come first, then the others by descending count, those with equal counts by
        first appearance. At level "subword", the order is that of SentencePiece.

        >>> Vocabulary.learn("word", ["b a b", "c a"]).symbols
        ('b', 'a', 'c')

        Args:
            level: "byte", "char", "word" or "subword".
            texts: The texts, in order; `bytes` are UTF-8 unless the level is "byte". No word may
                continue in the next text, and at level "subword" a text must consist of whole
                lines.
            **options: The fields of `txl_tf.data.text.learning.LearningOptions`.

        Returns:
            The vocabulary; without options, it has all symbols that occur, or 8,192 subwords.
            Subwords are learned from a sample of texts of more than 32 MiB.

        Raises:
            ValueError: If an option is not allowed at this level, or `min_count` is not positive.
            UserError: If `texts` is one text, `space` occurs, `max_symbols` leaves no room for the
                special symbols, or subwords cannot be learned from the texts.
        """
        if isinstance(texts, str | bytes):
            raise UserError("`texts` must be a list of texts. Received: one text")
        encoded = (_to_bytes(level, text) for text in texts)
        return cls(level, **learn_fields(level, encoded, LearningOptions(**options)))

    def __len__(self) -> int:
        return len(self.symbols)

    def __getstate__(self) -> dict[str, Any]:
        # Without the codec, whose tables cannot be pickled.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def unknown_id(self) -> int | None:
        """The id of `unknown`; `None` if there is no such symbol."""
        return None if self.unknown is None else self._id_of_symbol[self.unknown]

    def find_id(self, symbol: str) -> int | None:
        """Returns the id of a symbol; `None` if the vocabulary does not contain it.

        In the 2019 code: `get_idx`.
        """
        return self._id_of_symbol.get(symbol)

    def encode(self, text: str | bytes) -> np.ndarray:
        """Encodes a text.

        In the 2019 code: `get_indices`, `convert_to_nparray` and `encode_sents`.

        Args:
            text: The text. A `str` is encoded as UTF-8; `bytes` must be UTF-8 unless the level is
                "byte".

        Returns:
            The ids, (n,) int32.

        Raises:
            UserError: If a symbol is unknown and the vocabulary has no `unknown`. The message
                gives its offset, counted in symbols: bytes, characters or words.
            UnicodeError: If the text cannot be decoded or encoded as UTF-8.
        """
        encoded = self.codec.encode(_to_bytes(self.level, text))
        if encoded.unknown and self.unknown is None:
            raise UserError(self._describe_unknown(encoded))
        return encoded.ids

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Decodes ids.

        In the 2019 code: `get_sym`, `get_symbols` and `convert_to_sent`.

        Args:
            ids: The ids, (n,) integers.

        Returns:
            The text. At levels "byte" and "subword", bytes that are not UTF-8 become U+FFFD. At
            level "word", words are joined with spaces, and a line ends at `line_end` or, if there
            is none, at a `line_start` that follows a word.

        Raises:
            ValueError: If an id is out of range, or `ids` is not a row of integers.
        """
        errors = "surrogatepass" if self.level in ("char", "word") else "replace"
        return self.codec.decode(self._check_ids(ids)).decode("utf-8", errors=errors)

    def decode_bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """Decodes ids to bytes.

        Args:
            ids: The ids, (n,) of integers.

        Returns:
            The bytes. At level "byte" they are exactly the encoded ones; at other levels they are
            UTF-8, but a sequence of subwords may begin or end inside a character.

        Raises:
            ValueError: If an id is out of range, or `ids` is not a row of integers.
        """
        return self.codec.decode(self._check_ids(ids))

    @cached_property
    def codec(self) -> Codec:
        """The codec of this level."""
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
        """Returns the vocabulary as a JSON object."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        data["symbols"] = list(data.pop("symbols"))  # last, because there are many
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Creates a vocabulary from the result of `to_json`.

        Args:
            data: An object whose keys are arguments of the class; only "level" and "symbols" are
                required.

        Returns:
            The vocabulary.

        Raises:
            ValueError: If a required key is missing, a key is unknown, or a value is invalid.
        """
        known = {field.name for field in fields(cls)}
        if not {"level", "symbols"} <= set(data) <= known:
            raise ValueError(
                "A vocabulary must have the keys 'level' and 'symbols', and only keys of "
                f"{sorted(known)}. Received: {sorted(data)}"
            )
        return cls(**{**data, "symbols": tuple(data["symbols"])})

    @cached_property
    def _id_of_symbol(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols)}

    def _describe_unknown(self, encoded: Encoded) -> str:
        # A word may be megabytes long.
        examples = ", ".join(map(reprlib.repr, list(encoded.unknown)[:3]))
        return (
            f"only the {len(self)} {self.level}s of the vocabulary are known. "
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


def choose_prefix(vocabulary: Vocabulary) -> str:
    """Returns the text to put before a text without context: a line break, a space, or nothing.

    The result is the first of these that the vocabulary knows.
    """
    for prefix in ("\n", " "):
        encoded = vocabulary.codec.encode(prefix.encode("utf-8"))
        if len(encoded.ids) and not encoded.unknown:
            return prefix
    return ""


def _to_bytes(level: str, text: str | bytes) -> bytes:
    """Returns a text as bytes, and checks that they are UTF-8 unless the level is "byte"."""
    if isinstance(text, str):
        # A lone surrogate is a character, but TensorFlow accepts none.
        return text.encode("utf-8", errors="surrogatepass" if level == "char" else "strict")
    if not isinstance(text, bytes):
        raise UserError(f"a text must be `str` or `bytes`. Received: {type(text).__name__}")
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


def check_size(vocabulary: Vocabulary | None, n_token: int) -> None:
    """Checks that a vocabulary, if there is one, has as many symbols as a model has ids."""
    if vocabulary is not None and len(vocabulary) != n_token:
        raise UserError(
            f"the vocabulary has {len(vocabulary):,} symbols, but the model has {n_token:,}: they "
            "do not belong together"
        )


def read_vocabulary_file(path: Path | str, level: Level, options: LearningOptions) -> Vocabulary:
    """Reads a vocabulary from a file of the user.

    The file is a .json as in a run folder, or has one word per line, ordered by id; a number after
    a word, such as its count, is ignored. Words that no text can contain are rejected.

    In the 2019 code: `_build_from_file`.
    """
    text = read_small_text(path)
    damage = (AttributeError, TypeError, ValueError, RecursionError, UserError)
    with explain_errors(f"`{path}` is not a vocabulary", *damage):
        if str(path).endswith(".json"):
            vocabulary = Vocabulary.from_json(json.loads(text))
            if vocabulary.level != level:
                raise UserError(f"it has {vocabulary.level}s, not {level}s")
            _check_symbols_occur(vocabulary.symbols)
            unknown = options.unknown
            return vocabulary if unknown is None else replace(vocabulary, unknown=unknown)
        if level != "word":
            raise UserError("a file with one symbol per line needs level 'word', others a .json")
        words = _read_words(text)
        _check_symbols_occur(words)
        return Vocabulary(
            level,
            words,
            unknown=options.unknown,
            lower_case=options.lower_case,
            line_start=options.line_start,
            line_end=options.line_end,
        )


def _read_words(text: str) -> tuple[str, ...]:
    line_of_word: dict[str, int] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        fields = list(filter(None, WHITE_SPACE.split(line)))
        if not fields:
            raise UserError(f"line {number} is blank")
        word, *counts = fields
        if len(counts) > 1 or not all(map(_COUNT.fullmatch, counts)):
            raise UserError(
                f"line {number} must be a word, which has no white space, and perhaps a number. "
                f"Received: {reprlib.repr(line)}"
            )
        if word in line_of_word:
            raise UserError(f"lines {line_of_word[word]} and {number} both contain {word!r}")
        line_of_word[word] = number
    return tuple(line_of_word)


def _check_symbols_occur(symbols: Iterable[str]) -> None:
    # UTF-8 has no lone surrogates, and words have no NUL.
    wrong = next(filter(_IMPOSSIBLE.search, symbols), None)
    if wrong is not None:
        raise UserError(f"no text contains {reprlib.repr(wrong)}")
