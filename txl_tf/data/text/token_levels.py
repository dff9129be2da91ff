"""The levels at which a text is split into symbols, and the rule for a symbol at each level."""

from collections.abc import Callable, Iterable
from typing import Literal, get_args

from txl_tf.data.text.words import WHITE_SPACE

Level = Literal["byte", "char", "word", "subword"]
CHARACTER_LEVELS = ("byte", "char")  # at which a token is a character
LEVELS: tuple[str, ...] = get_args(Level)
# The levels at which each optional field of a `Vocabulary` is allowed.
LEVELS_OF_FIELD = {
    "space": ("char",),
    "unknown": ("char", "word"),
    "lower_case": ("word", "subword"),
    "line_start": ("word",),
    "line_end": ("word",),
    "sentencepiece": ("subword",),
}


def are_symbols(level: Level, texts: Iterable[str]) -> bool:
    """Returns whether each of the texts can be a symbol at this level."""
    return all(map(SYMBOL_RULES[level][1], texts))


def _is_byte(symbol: str) -> bool:
    return symbol.isdecimal() and int(symbol) < 256 and str(int(symbol)) == symbol


def _is_word(symbol: str) -> bool:
    return bool(symbol) and not WHITE_SPACE.search(symbol)


# The rule for a symbol, in words and as a function.
SYMBOL_RULES: dict[str, tuple[str, Callable[[str], bool]]] = {
    "byte": ("the decimal number of a byte", _is_byte),
    "char": ("one character", lambda symbol: len(symbol) == 1),
    "word": ("a word without white space", _is_word),
    "subword": ("a piece of a text", bool),
}
