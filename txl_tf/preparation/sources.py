"""The texts of the splits, read from raw files or held in memory."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from txl_tf.data.text_files import Chunk, EncodingErrors, TextFile, TextSource
from txl_tf.preparation.corpora import CorpusSpec
from txl_tf.preparation.raw_files import CorpusError

_BYTE_OF_NUMBER = {str(byte).encode("ascii"): byte for byte in range(256)}


@dataclass(frozen=True)
class DocumentSource:
    """Documents in memory, each a file of its own.

    Args:
        documents: The text of each.
    """

    documents: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """The bytes of the text."""
        return sum(map(len, self.documents))

    def iterate_chunks(self) -> Iterator[Chunk]:
        """Yields the documents."""
        return (Chunk(document, True, True) for document in self.documents)


def make_source(
    corpus: CorpusSpec,
    files: tuple[TextFile, ...],
    *,
    is_release: bool,
    drop_newlines: bool = False,
    encoding_errors: EncodingErrors = "strict",
) -> TextSource:
    """Returns the text of a split.

    Args:
        corpus: The data set.
        files: The files of the split.
        is_release: Whether the 2019 release wrote them, in the way that `corpus.parse` tells.
        drop_newlines: Whether to drop byte 10, as the release did in enwik8.
        encoding_errors: As in `TextSource`.
    """
    steps: list[Callable[[bytes], bytes]] = []
    if is_release and corpus.parse:
        steps.append({"text8": parse_text8, "enwik8": parse_enwik8}[corpus.parse])
    if corpus.name == "text8":
        steps.append(_check_text8)
    if drop_newlines:
        steps.append(_drop_newlines)
    return TextSource(files, corpus.level, encoding_errors, _compose(steps) if steps else None)


def parse_text8(text: bytes) -> bytes:
    """Reads characters as the 2019 release wrote them: a space after each, "_" for a space.

    >>> parse_text8(b"a _ b ")
    b'a b'
    """
    symbols = text.split()
    if any(len(symbol) != 1 for symbol in symbols):
        wrong = next(symbol for symbol in symbols if len(symbol) != 1)
        raise CorpusError(
            f"this is not text8 as the 2019 release wrote it, one character at a time: {wrong!r}"
        )
    return b"".join(symbols).replace(b"_", b" ")


def parse_enwik8(text: bytes) -> bytes:
    r"""Reads bytes as the 2019 release wrote them: decimal numbers, but byte 10 as a line break.

    >>> parse_enwik8(b"72 105 \n 33")
    b'Hi\n!'
    """
    # A line break that follows a number at once is no byte: an editor ends files with it.
    numbers = re.sub(rb"(?<![0-9])\r?\n", b" 10 ", text).split()
    try:
        return bytes(map(_BYTE_OF_NUMBER.__getitem__, numbers))
    except KeyError as error:
        raise CorpusError(
            f"this is not enwik8 as the 2019 release wrote it, numbers below 256: {error}"
        ) from error


def _check_text8(text: bytes) -> bytes:
    if b"_" in text:
        raise CorpusError("this is not text8: it holds '_', the symbol of a space")
    return text


def _drop_newlines(text: bytes) -> bytes:
    return text.replace(b"\n", b"")


def _compose(steps: list[Callable[[bytes], bytes]]) -> Callable[[bytes], bytes]:
    def parse(text: bytes) -> bytes:
        for step in steps:
            text = step(text)
        return text

    return parse
