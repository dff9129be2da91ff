"""The texts of the splits, read from raw files or held in memory."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from txl_tf.data.text.text_files import Chunk, EncodingErrors, TextFile, TextSource
from txl_tf.preparation.corpora import CorpusSpec
from txl_tf.preparation.raw_files import CorpusError

_BYTE_OF_NUMBER = {str(byte).encode("ascii"): byte for byte in range(256)}


class Source(Protocol):
    """The text of a split, which can be read repeatedly."""

    @property
    def size(self) -> int | None:
        """The size of the text in bytes; `None` if it must be read to know."""

    def iterate_chunks(self) -> Iterator[Chunk]:
        """Yields the text, one chunk at a time."""


@dataclass(frozen=True)
class DocumentSource:
    """Documents in memory, each treated as a separate file.

    Args:
        documents: The text of each document.
    """

    documents: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """The size of the text in bytes."""
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
    """Returns the source of a split.

    Args:
        corpus: The data set.
        files: The files of the split.
        is_release: Whether the files have the format `corpus.release_format`, if there is one.
        drop_newlines: Whether to drop byte 10, as the release did in enwik8.
        encoding_errors: As in `TextSource`.
    """
    steps: list[Callable[[bytes], bytes]] = []
    if is_release and corpus.release_format:
        steps.append({"text8": parse_text8, "enwik8": parse_enwik8}[corpus.release_format])
    if corpus.name == "text8":
        steps.append(_check_text8)
    if drop_newlines:
        steps.append(_drop_newlines)
    return TextSource(files, corpus.level, encoding_errors, _compose(steps) if steps else None)


def parse_text8(text: bytes) -> bytes:
    """Parses characters in the 2019 format: a space after each, "_" for a space.

    >>> parse_text8(b"a _ b ")
    b'a b'
    """
    symbols = text.split()
    if any(len(symbol) != 1 for symbol in symbols):
        wrong = next(symbol for symbol in symbols if len(symbol) != 1)
        raise CorpusError(
            "this is not text8 in the format of the 2019 release, whose characters are separated: "
            f"{wrong!r}"
        )
    return b"".join(symbols).replace(b"_", b" ")


def parse_enwik8(text: bytes) -> bytes:
    r"""Parses bytes in the 2019 format: decimal numbers, but a line break for byte 10.

    >>> parse_enwik8(b"72 105 \n 33")
    b'Hi\n!'
    """
    # A line break directly after a number is not a byte 10: editors end files with it.
    numbers = re.sub(rb"(?<![0-9])\r?\n", b" 10 ", text).split()
    try:
        return bytes(map(_BYTE_OF_NUMBER.__getitem__, numbers))
    except KeyError as error:
        raise CorpusError(
            f"this is not enwik8 in the format of the 2019 release, numbers below 256: {error}"
        ) from error


def _check_text8(text: bytes) -> bytes:
    if b"_" in text:
        raise CorpusError("this is not text8: it holds '_', the symbol for a space")
    return text


def _drop_newlines(text: bytes) -> bytes:
    return text.replace(b"\n", b"")


def _compose(steps: list[Callable[[bytes], bytes]]) -> Callable[[bytes], bytes]:
    def parse(text: bytes) -> bytes:
        for step in steps:
            text = step(text)
        return text

    return parse
