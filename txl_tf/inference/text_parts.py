"""Texts as tokens, with the bytes and the words that these stand for."""

import re
import reprlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from txl_tf.data.codec import Encoded
from txl_tf.data.documents import DocumentFinder
from txl_tf.data.text_files import Chunk, TextError, TextSource
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.data.words import WHITE_SPACE

_SPACES = b" \t\n\r\v\f"


class TextName(NamedTuple):
    """What a text is called.

    Args:
        source: the file that it is in; empty if it is in none.
        number: of the line or document in it, or of the text, from 1 on.
    """

    source: str
    number: int


class TextPart(NamedTuple):
    """Some tokens of a text, which follow those of the part before.

    Args:
        ids: (n,) int32.
        n_bytes: bytes that they were made of; `None` where only ids are known.
        n_words: words that begin in them; at level "word" all of `ids`; `None` as before.
        first: bytes of the first of `ids`, and the words that lie within it.
        begins: the name of the text that begins here; `None` if the last one goes on.
    """

    ids: np.ndarray
    n_bytes: int | None
    n_words: int | None
    first: tuple[int, int]
    begins: TextName | None


def make_ids_part(ids: np.ndarray, begins: TextName) -> TextPart:
    """Returns a whole text of which only the ids, (n,) int32, are known."""
    return TextPart(ids, None, None, (0, 0), begins)


def make_text_part(
    vocabulary: Vocabulary,
    ids: np.ndarray,
    text: bytes,
    begins: TextName | None,
    *,
    is_in_word: bool = False,
) -> TextPart:
    """Returns a part of a text.

    Args:
        vocabulary: its symbols.
        ids: (n,) int32, what they make of `text`.
        text: UTF-8; at level "byte" anything.
        begins: as `TextPart`'s.
        is_in_word: whether the text before ended within a word.
    """
    goes_on = is_in_word and text[:1] not in _SPACES
    n_words = len(ids) if vocabulary.level == "word" else len(text.split()) - goes_on
    first = _measure_first(vocabulary, ids, text)
    return TextPart(ids, len(text), n_words, first, begins)


def read_file(
    source: TextSource,
    vocabulary: Vocabulary,
    finder: DocumentFinder | None = None,
    *,
    report: Callable[[int], object] = lambda n_bytes: None,
) -> Iterator[TextPart]:
    """Yields the texts in a file, some megabytes at a time.

    Args:
        source: the file.
        vocabulary: its symbols.
        finder: where texts begin; `None`: all of the file is one, be it empty.
        report: called with the bytes of each chunk that was taken.

    Raises:
        UserError: the file cannot be read, or a symbol is not in the vocabulary, which has none
            for those: it is named, with line and offset.
    """
    (file,) = source.files
    number = n_bytes = n_lines = 0
    if finder is None:
        yield make_text_part(vocabulary, np.zeros(0, np.int32), b"", TextName(str(file), 1))
    is_in_word = False
    for chunk in source.iterate_chunks():
        offsets = np.zeros(0, np.int64) if finder is None else finder.find(chunk)
        codec, text = vocabulary.codec, chunk.text
        encoded = codec.encode(text, offsets, begins_line=chunk.begins_line)
        if encoded.unknown and vocabulary.unknown is None:
            line, offset, what = _find_unknown(vocabulary, encoded, chunk)
            raise TextError(
                f"`{file}`, line {n_lines + line}, byte offset {n_bytes + offset}: {what} is not "
                f"among the {len(vocabulary):,} {vocabulary.level}s of the vocabulary, which has "
                "no symbol for unknown ones"
            )
        bounds = [0, *offsets.tolist(), len(text)]
        places = [0, *encoded.positions.tolist(), len(encoded.ids)]
        for index in range(len(bounds) - 1):
            begins = None
            if index:
                number += 1
                begins = TextName(str(file), number)
            start, stop = bounds[index : index + 2]
            if index or stop:
                ids = encoded.ids[places[index] : places[index + 1]]
                part = text[start:stop]
                yield make_text_part(vocabulary, ids, part, begins, is_in_word=is_in_word)
                is_in_word = part[-1:] not in _SPACES
        report(len(text))
        n_bytes += len(text)
        n_lines += text.count(b"\n")


def split_texts(parts: Iterable[TextPart]) -> Iterator[Iterator[TextPart]]:
    """Yields the parts of each text; one text must be taken to its end before the next.

    Args:
        parts: of all texts; the first begins one.
    """
    rest = iter(parts)
    following = next(rest, None)

    def take_text(part: TextPart) -> Iterator[TextPart]:
        nonlocal following
        yield part
        while (following := next(rest, None)) is not None and following.begins is None:
            yield following

    while following is not None:
        yield take_text(following)


def _measure_first(vocabulary: Vocabulary, ids: np.ndarray, text: bytes) -> tuple[int, int]:
    """Returns the bytes of the first token of a text, and the words that lie within it."""
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
    """Returns the bytes of the first token of a text of words, without white space around it."""
    if vocabulary.line_start is not None:
        return 0
    if vocabulary.line_end is not None and text.lstrip(b" \t\r\v\f")[:1] == b"\n":
        return 1
    begin = text.split(None, 1)[0].decode("utf-8")
    return len(next(filter(None, WHITE_SPACE.split(begin)), "").encode("utf-8"))


def _find_unknown(vocabulary: Vocabulary, encoded: Encoded, chunk: Chunk) -> tuple[int, int, str]:
    """Returns the line, from 1 on, and byte offset of a chunk's first unknown symbol, and it."""
    text = chunk.text
    place = int(encoded.ids.argmin())
    if vocabulary.level == "byte":
        return text.count(b"\n", 0, place) + 1, place, f"byte {text[place]}"
    if vocabulary.level == "char":
        characters = text.decode("utf-8")
        offset = len(characters[:place].encode("utf-8"))
        symbol = characters[place]
        return text.count(b"\n", 0, offset) + 1, offset, f"{symbol!r} (U+{ord(symbol):04X})"
    word = next(iter(encoded.unknown))
    # The line begins behind the last line whose ids come before it.
    starts = np.array([0, *(np.flatnonzero(np.frombuffer(text, np.uint8) == 10) + 1)], np.int64)
    starts = starts[starts < max(len(text), 1)]
    positions = vocabulary.codec.encode(text, starts, begins_line=chunk.begins_line).positions
    line = int(np.searchsorted(positions, place, side="right")) - 1
    offset = int(starts[line])
    pattern = rb"(?<!\S)" + re.escape(word.encode("utf-8")) + rb"(?!\S)"
    found = re.compile(pattern, re.IGNORECASE).search(
        text, offset
    )  # texts may be put in lower case
    return line + 1, found.start() if found else offset, reprlib.repr(word)
