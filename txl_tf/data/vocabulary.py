"""The symbols of a data set and their ids."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self, get_args

import numpy as np

from txl_tf.errors import UserError

Level = Literal["byte", "char", "word"]
LEVELS: tuple[str, ...] = get_args(Level)


@dataclass(frozen=True)
class Vocabulary:
    """The symbols of a text, in id order: bytes, characters or words.

    >>> vocabulary = Vocabulary("char", ("_", "e", "s"), space="_")
    >>> vocabulary.encode("see es")
    array([2, 1, 1, 0, 1, 2], dtype=int32)
    >>> vocabulary.decode([2, 1, 1, 0, 1, 2])
    'see es'

    Args:
        level: "byte": a symbol is the decimal number of a byte, "10"; "char": it is one character
            (a Unicode code point); "word": it is a word, and a text is split on white space.
        symbols: The symbols; the place of a symbol is its id.
        space: At level "char", the symbol that stands for the space (U+0020); text8 uses "_".
            The character "_" itself is then unknown. `None`: the space is a symbol as any other.

    Raises:
        ValueError: If the level is unknown, or a symbol is empty, repeated or not of its level.
    """

    level: Level
    symbols: tuple[str, ...]
    space: str | None = None

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"`level` must be one of {LEVELS}. Received: level={self.level!r}")
        _check_symbols(self.level, self.symbols)
        if self.space is not None and (self.level != "char" or self.space not in self.symbols):
            raise ValueError(
                "`space` must be one of the symbols of a vocabulary of characters. "
                f"Received: space={self.space!r}, level={self.level!r}"
            )
        if self.space not in (None, " ") and " " in self.symbols:
            raise ValueError(
                "`symbols` must not hold ' ' where `space` stands for it. "
                f"Received: space={self.space!r}"
            )

    @classmethod
    def learn(
        cls,
        level: Level,
        texts: Iterable[str | bytes],
        *,
        space: str | None = None,
        every_byte: bool = False,
    ) -> Self:
        """Counts the symbols of `texts`; ids go by falling count.

        Equal counts keep the order of first appearance.

        >>> Vocabulary.learn("word", ["b a b", "c a"]).symbols
        ('b', 'a', 'c')

        Args:
            level: "byte", "char" or "word".
            texts: The texts, in order; `bytes` are read as UTF-8. Each is split into words by
                itself.
            space: As in the class; it must not occur in the texts. It becomes a symbol only if
                they hold a space.
            every_byte: At level "byte", also add the bytes that do not occur, last and in byte
                order, so that every text can be encoded.

        Returns:
            The vocabulary of all symbols that occur.

        Raises:
            ValueError: If `every_byte` is asked for at another level, or `space` occurs.
        """
        if every_byte and level != "byte":
            raise ValueError(f"`every_byte` needs level='byte'. Received: level={level!r}")
        counts: Counter[Any] = Counter()
        for text in texts:
            if level == "byte":
                counts.update(_to_bytes(text))
            else:
                counts.update(_to_str(text) if level == "char" else _to_str(text).split())
        # most_common sorts stably, and a Counter keeps the order of first appearance.
        symbols = [symbol for symbol, _ in counts.most_common()]
        if space is not None:
            if space in counts:
                raise ValueError(f"`space` must not occur in `texts`. Received: space={space!r}")
            symbols = [space if symbol == " " else symbol for symbol in symbols]
            space = space if " " in counts else None
        if every_byte:
            symbols += [byte for byte in range(256) if byte not in counts]
        return cls(level, tuple(map(str, symbols)), space)

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, text: str | bytes) -> np.ndarray:
        """Turns a text into ids.

        Args:
            text: The text. A `str` is encoded as UTF-8 at level "byte"; `bytes` are decoded as
                UTF-8 at the other levels.

        Returns:
            The ids, (n,) int32.

        Raises:
            UserError: If a symbol is not in the vocabulary. The offset it names counts symbols:
                bytes, characters or words.
        """
        if self.level == "word":
            words = _to_str(text).split()
            ids = np.fromiter((self._id_of_word.get(word, -1) for word in words), np.int32)
        else:
            codes = self._to_codes(text)
            # "clip": the table's last entry, -1, is for all codes above the highest known.
            ids = self._id_of_code.take(codes, mode="clip")
        if ids.size and ids.min() < 0:
            offset = int(ids.argmin())
            if self.level == "byte":
                unknown = f"byte {codes[offset]}"
            elif self.level == "char":
                unknown = f"character {chr(codes[offset])!r}"
            else:
                unknown = f"word {words[offset]!r}"
            raise UserError(
                f"`text` must hold known symbols only ({len(self)} {self.level}s are known). "
                f"Received: {unknown} at offset {offset}"
            )
        return ids

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Turns ids into a text.

        Args:
            ids: The ids, (n,) of integers.

        Returns:
            The text. At level "byte", bytes that are no UTF-8 become U+FFFD; at level "word", the
            words are joined with spaces.

        Raises:
            ValueError: If an id is out of range, or `ids` are not a row of integers.
        """
        if self.level == "byte":
            return self.decode_bytes(ids).decode("utf-8", errors="replace")
        checked = self._check_ids(ids)
        if self.level == "word":
            return " ".join(self.symbols[i] for i in checked)
        return self._codes[checked].tobytes().decode("utf-32-le", errors="surrogatepass")

    def decode_bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """Turns ids of a byte-level vocabulary into the bytes they stand for.

        Args:
            ids: The ids, (n,) of integers.

        Returns:
            The bytes, exactly as they were before `encode`.

        Raises:
            ValueError: If the level is not "byte", an id is out of range, or `ids` are not a row
                of integers.
        """
        if self.level != "byte":
            raise ValueError(f"`decode_bytes` needs level='byte'. Received: level={self.level!r}")
        return self._codes[self._check_ids(ids)].astype(np.uint8).tobytes()

    def to_json(self) -> dict[str, Any]:
        """Returns the vocabulary as a JSON object."""
        return {"level": self.level, "space": self.space, "symbols": list(self.symbols)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Reads what `to_json` returned.

        Args:
            data: An object with the keys "level", "space" and "symbols".

        Returns:
            The vocabulary.

        Raises:
            ValueError: If a key is missing or unknown, or a value is against the class's rules.
        """
        known = {"level", "space", "symbols"}
        if set(data) != known:
            raise ValueError(
                f"A vocabulary must have the keys {sorted(known)}. Received: {sorted(data)}"
            )
        return cls(data["level"], tuple(data["symbols"]), data["space"])

    @cached_property
    def _codes(self) -> np.ndarray:
        """The byte or code point of each id, (V,) uint32."""
        if self.level == "byte":
            return np.array([int(symbol) for symbol in self.symbols], np.uint32)
        characters = (" " if symbol == self.space else symbol for symbol in self.symbols)
        return np.array([ord(character) for character in characters], np.uint32)

    @cached_property
    def _id_of_code(self) -> np.ndarray:
        """The id of each byte or code point up to the highest known, and -1 once more, int32."""
        table = np.full(int(self._codes.max(initial=0)) + 2, -1, np.int32)
        table[self._codes] = np.arange(len(self), dtype=np.int32)
        return table

    @cached_property
    def _id_of_word(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols)}

    def _to_codes(self, text: str | bytes) -> np.ndarray:
        if self.level == "byte":
            return np.frombuffer(_to_bytes(text), np.uint8)
        return np.frombuffer(_to_str(text).encode("utf-32-le", errors="surrogatepass"), "<u4")

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


def _to_bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8") if isinstance(text, str) else text


def _to_str(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("utf-8")


def _check_symbols(level: str, symbols: tuple[str, ...]) -> None:
    if len(set(symbols)) < len(symbols):
        repeated = next(symbol for symbol, count in Counter(symbols).items() if count > 1)
        raise ValueError(f"`symbols` must all differ. Received twice: {repeated!r}")
    rule, is_of_level = {
        "byte": ("the decimal number of a byte", _is_byte),
        "char": ("one character", lambda symbol: len(symbol) == 1),
        "word": ("a word without white space", lambda symbol: symbol.split() == [symbol]),
    }[level]
    for i, symbol in enumerate(symbols):
        if not is_of_level(symbol):
            raise ValueError(
                f"Each of `symbols` must be {rule}. Received: {symbol!r} as symbol {i}"
            )


def _is_byte(symbol: str) -> bool:
    return symbol.isdecimal() and int(symbol) < 256 and str(int(symbol)) == symbol
