"""Texts in chunks of tokens, with the numbers of bytes and words that the tokens stand for."""

import re
import reprlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from txl_tf.data.text.codec import Encoded
from txl_tf.data.text.documents import DocumentFinder
from txl_tf.data.text.text_files import TextSource
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.data.text.words import WHITE_SPACE
from txl_tf.errors import UserError

_SPACES = b" \t\n\r\v\f"
_MAX_SEARCHED = 64  # characters of an unknown word to search for


class TextName(NamedTuple):
    """The name of a text."""

    source: str  # its file; empty if there is none
    number: int  # of the line, document or text, from 1


class TextChunk(NamedTuple):
    """Consecutive tokens of a text; the counts are `None` if only the ids are known."""

    ids: np.ndarray  # (n,) int32
    n_bytes: int | None
    n_words: int | None  # words that begin in the chunk; at level "word", the number of tokens
    first: tuple[int, int]  # the numbers of bytes and of words in the first token
    begins: TextName | None  # the text that begins here; `None` if the chunk continues a text


def make_text_chunk(
    vocabulary: Vocabulary,
    ids: np.ndarray,
    text: bytes,
    begins: TextName | None,
    *,
    is_in_word: bool = False,
) -> TextChunk:
    """Returns a chunk of encoded UTF-8 text, or of any bytes at level "byte".

    `is_in_word` says whether the text before the chunk ended inside a word.
    """
    continues_word = is_in_word and text[:1] not in _SPACES
    n_words = len(ids) if vocabulary.level == "word" else len(text.split()) - continues_word
    first = _measure_first(vocabulary, ids, text)
    return TextChunk(ids, len(text), n_words, first, begins)


def read_file(
    source: TextSource,
    vocabulary: Vocabulary,
    finder: DocumentFinder | None = None,
) -> Iterator[TextChunk]:
    """Yields the texts in a file, a few megabytes at a time.

    Args:
        source: The file.
        vocabulary: The vocabulary.
        finder: The rule for where texts begin; `None` if the whole file is one text, which may be
            empty.

    Raises:
        UserError: If the file cannot be read, or contains a symbol that the vocabulary cannot
            encode. The message names the line and the offset.
    """
    (file,) = source.files
    number = n_lines = 0
    if finder is None:
        yield make_text_chunk(vocabulary, np.zeros(0, np.int32), b"", TextName(str(file), 1))
    is_in_word = False
    for chunk in source.iterate_chunks():
        offsets = np.zeros(0, np.int64) if finder is None else finder.find(chunk)
        codec, text = vocabulary.codec, chunk.text
        encoded = codec.encode(text, offsets, begins_line=chunk.begins_line)
        if encoded.unknown and vocabulary.unknown is None:
            line, offset, symbol = _find_unknown(vocabulary, encoded, text)
            line += n_lines + file.count_lines_before()
            raise UserError(
                f"`{file}`, line {line}, byte offset {chunk.offset + offset}: {symbol} is "
                f"not among the {len(vocabulary):,} {vocabulary.level}s of the vocabulary, which "
                "has no symbol for unknown ones"
            )
        bounds = [0, *offsets.tolist(), len(text)]
        first_ids = [0, *encoded.positions.tolist(), len(encoded.ids)]
        for index in range(len(bounds) - 1):
            begins = None
            if index:
                number += 1
                begins = TextName(str(file), number)
            start, stop = bounds[index : index + 2]
            if index or stop:
                ids = encoded.ids[first_ids[index] : first_ids[index + 1]]
                piece = text[start:stop]
                yield make_text_chunk(vocabulary, ids, piece, begins, is_in_word=is_in_word)
                is_in_word = piece[-1:] not in _SPACES
        n_lines += text.count(b"\n")


def split_texts(chunks: Iterable[TextChunk]) -> Iterator[list[TextChunk]]:
    """Yields the list of chunks of each text; the very first chunk must begin a text."""
    text: list[TextChunk] = []
    for chunk in chunks:
        if chunk.begins is not None and text:
            yield text
            text = []
        text.append(chunk)
    if text:
        yield text


def _measure_first(vocabulary: Vocabulary, ids: np.ndarray, text: bytes) -> tuple[int, int]:
    """Returns the numbers of bytes and of words in the first token of a text."""
    if not len(ids):
        return 0, 0
    if vocabulary.level == "word":
        return _measure_first_word(vocabulary, text), 1
    if vocabulary.level == "subword":
        n_bytes = len(vocabulary.decode_bytes(ids[:1]))
    elif vocabulary.level == "char":
        n_bytes = len(text[:4].decode("utf-8", errors="ignore")[:1].encode("utf-8"))
    else:
        n_bytes = 1
    token, following = text[:n_bytes], text[n_bytes : n_bytes + 1]
    is_cut = following not in _SPACES and token[-1:] not in _SPACES
    return n_bytes, len(token.split()) - is_cut


def _measure_first_word(vocabulary: Vocabulary, text: bytes) -> int:
    """Returns the number of bytes in a text's first word, without the space around it."""
    if vocabulary.line_start is not None:
        return 0
    if vocabulary.line_end is not None and text.lstrip(b" \t\r\v\f")[:1] == b"\n":
        return 1
    begin = text.split(None, 1)[0].decode("utf-8")
    return len(next(filter(None, WHITE_SPACE.split(begin)), "").encode("utf-8"))


def _find_unknown(vocabulary: Vocabulary, encoded: Encoded, text: bytes) -> tuple[int, int, str]:
    """Returns the line (from 1), the byte offset and the name of the first unknown symbol."""
    index = int(encoded.ids.argmin())
    if vocabulary.level == "byte":
        return text.count(b"\n", 0, index) + 1, index, f"byte {text[index]}"
    characters = text.decode("utf-8")
    if vocabulary.level == "char":
        start, symbol = index, characters[index]
        name = f"{symbol!r} (U+{ord(symbol):04X})"
    else:
        word = next(iter(encoded.unknown))
        begin = word[:_MAX_SEARCHED]  # a word may be megabytes long
        end = r"(?!\S)" if begin == word else ""
        characters = characters.lower() if vocabulary.lower_case else characters
        found = re.search(rf"(?<!\S){re.escape(begin)}{end}", characters)
        start, name = found.start() if found else 0, reprlib.repr(word)
    offset = len(characters[:start].encode("utf-8"))
    return text.count(b"\n", 0, offset) + 1, offset, name
