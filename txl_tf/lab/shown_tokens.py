"""The tokens of a text in readable form, for pages."""

from collections.abc import Iterator

import numpy as np

from txl_tf.data import Vocabulary
from txl_tf.scoring.text_report import show_symbol

# Control characters are replaced by their Unicode pictures, or by U+FFFD if they have none.
_UNSHOWN = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
_UNSHOWN |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def show_tokens(vocabulary: Vocabulary | None, ids: np.ndarray) -> list[tuple[str, str]]:
    r"""Returns each token of a text, (n,) int32, as it is shown, and the space that follows it.

    The space is white space that is not part of the token. Line breaks and tabs are marked. A
    character of several tokens, such as its UTF-8 bytes, is shown at the first of them; the others
    are empty. A byte that is not UTF-8 is shown as an escape, such as "\xc8". Without a vocabulary,
    the ids are shown.
    """
    if vocabulary is None:
        return [(str(token), " ") for token in ids.tolist()]
    if vocabulary.level in ("word", "char"):
        symbols = [vocabulary.symbols[token] for token in ids.tolist()]
        if vocabulary.level == "char":
            return [(_mark(" " if s == vocabulary.space else s), "") for s in symbols]
        following = zip(symbols, [*symbols[1:], ""], strict=True)
        return [_show_word(vocabulary, *pair) for pair in following]
    pieces = [vocabulary.decode_bytes([token]) for token in ids.tolist()]
    owner = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])
    texts = [""] * len(pieces)
    for offset, character in _split_characters(b"".join(pieces)):
        texts[owner[offset]] += character
    return [(_mark(text), "") for text in texts]


def name_symbol(vocabulary: Vocabulary | None, token: int) -> str:
    """Returns a symbol on one line, with visible spaces; without a vocabulary, its id."""
    if vocabulary is None:
        return str(token)
    symbol = show_symbol(vocabulary, token)
    if vocabulary.level == "subword":  # a piece may be a single byte
        pieces = _split_characters(vocabulary.decode_bytes([token]))
        symbol = "".join(character for _, character in pieces)
    if symbol == vocabulary.space:
        symbol = " "
    symbol = symbol.replace("\n", "\\n").replace("\t", "\\t").replace(" ", "\u2423")
    return show_controls(replace_surrogates(symbol))


def show_controls(text: str) -> str:
    """Returns a text with visible control characters, except for tabs and line breaks."""
    return text.translate(_UNSHOWN)


def _show_word(vocabulary: Vocabulary, symbol: str, following: str) -> tuple[str, str]:
    if symbol == vocabulary.line_end:
        return "\u21b5\n", ""
    ends_line = vocabulary.line_end is None and following == vocabulary.line_start
    return replace_surrogates(symbol), "\n" if ends_line else " "


def _split_characters(text: bytes) -> Iterator[tuple[int, str]]:
    """Yields the byte offset of each character, and the character or the escape of a byte."""
    offset = 0
    while offset < len(text):
        for size in range(1, 5):
            try:
                character = text[offset : offset + size].decode()
                break
            except UnicodeDecodeError:
                continue
        else:
            character, size = f"\\x{text[offset]:02x}", 1
        yield offset, character
        offset += size


def _mark(text: str) -> str:
    return replace_surrogates(text).replace("\n", "\u21b5\n").replace("\t", "\u21e5\t")


def replace_surrogates(text: str) -> str:
    """Returns a text without lone surrogates, which level char allows, but no file can hold."""
    return text.encode("utf-8", errors="replace").decode("utf-8")
