"""The raw files of the public data sets: which there are, and how they become splits."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from corpora import SPLITS, Corpus

from txl_tf.data.text_files import EncodingErrors, TextFile, TextSource, find_files
from txl_tf.errors import UserError


class CorpusError(UserError):
    """A raw file that is missing, damaged or too small."""


_BYTE_OF_NUMBER = {str(byte).encode("ascii"): byte for byte in range(256)}

Files = Mapping[str, tuple[TextFile, ...]]


def find_layout(corpus: Corpus, raw_dir: Path) -> Files | None:
    """Finds the files of the splits.

    Args:
        corpus: The data set.
        raw_dir: The folder of its raw files.

    Returns:
        The files of each split, in the first layout that is whole; `None` if none is.
    """
    for layout in corpus.layouts:
        found = {split: find_raw(raw_dir, layout[split]) for split in SPLITS}
        if all(found.values()):
            return found
    return None


def find_raw(raw_dir: Path, pattern: str) -> tuple[TextFile, ...]:
    """Returns the files that a pattern of a layout names, in order; none if there are none.

    Args:
        raw_dir: The folder.
        pattern: A pattern of paths in it, or ARCHIVE.zip!MEMBER.
    """
    archive, _, member = pattern.partition("!")
    paths = sorted(path for path in raw_dir.glob(archive) if path.is_file())
    if not member:
        return tuple(TextFile(path) for path in paths)
    return tuple(
        file for path in paths for file in find_files([str(path)]) if file.member == member
    )


def cut_raw(
    corpus: Corpus, file: TextFile, *, valid_size: int, test_size: int
) -> dict[str, TextFile]:
    """Cuts the one raw file of a data set into splits: test at the end, valid before it.

    Args:
        corpus: The data set; of text8, the splits are stripped of the spaces around them.
        file: Its raw file.
        valid_size: Bytes of the valid split.
        test_size: Bytes of the test split.

    Returns:
        The stretch of each split.

    Raises:
        CorpusError: If nothing would be left for training.
    """
    size = file.size
    assert size is not None
    ends = (size - valid_size - test_size, size - test_size, size)
    if ends[0] <= 0:
        raise CorpusError(
            "`valid_size` + `test_size` must be below the size of the raw file. "
            f"Received: valid_size={valid_size}, test_size={test_size}, `{file}` of {size} bytes"
        )
    stretches = zip((0, *ends), ends, strict=False)
    splits = {
        split: TextFile(file.path, file.member, start, stop)
        for split, (start, stop) in zip(SPLITS, stretches, strict=True)
    }
    if corpus.level == "byte":
        return splits
    return {split: _strip(stretch) for split, stretch in splits.items()}


def make_source(
    corpus: Corpus,
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


def _strip(file: TextFile) -> TextFile:
    """Returns a stretch without the white space at its ends."""
    assert file.stop is not None
    n_left = _count_space(file, at_end=False)
    if n_left == file.stop - file.start:
        return TextFile(file.path, file.member, file.stop, file.stop)
    n_right = _count_space(file, at_end=True)
    return TextFile(file.path, file.member, file.start + n_left, file.stop - n_right)


def _count_space(file: TextFile, *, at_end: bool, n_bytes: int = 256) -> int:
    """Returns the bytes of white space at an end of a stretch; looks at more until it knows."""
    assert file.stop is not None
    size = file.stop - file.start
    start = max(file.start, file.stop - n_bytes) if at_end else file.start
    stop = file.stop if at_end else min(file.stop, file.start + n_bytes)
    text = b"".join(TextFile(file.path, file.member, start, stop).iterate_blocks())
    stripped = text.rstrip() if at_end else text.lstrip()
    if not stripped and n_bytes < size:
        return _count_space(file, at_end=at_end, n_bytes=2 * n_bytes)
    return len(text) - len(stripped)
