"""Pieces of a text for many workers: groups of small files, and ranges of large ones.

The ranges of a file are steps of a regular grid. Each worker moves the ends of its range to line
boundaries, so files are divided without being read.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from txl_tf.data.text.documents import DocumentFinder
from txl_tf.data.text.text_files import Chunk, TextFile

PIECE_BYTES = 2**25
# A document's end is recognized by its last line, of which at most this much is read again.
_MAX_LINE_BYTES = 2**26
_BLOCK_BYTES = 2**16
_WHITE_SPACE = b" \t\r\f\v\n"


def divide_files(
    files: Iterable[TextFile], piece_bytes: int = PIECE_BYTES, *, ranges: bool = True
) -> Iterator[tuple[TextFile, ...]]:
    """Divides files into pieces of about `piece_bytes` of stored data.

    A piece holds as many whole files as fit or, with `ranges`, one step of the grid of a large file
    (see `find_range`). Packed files are never divided.
    """
    group: list[TextFile] = []
    n_bytes = 0
    for file in files:
        size = file.stored_size
        is_divided = ranges and size > piece_bytes and not file.is_packed
        if group and (is_divided or n_bytes + size > piece_bytes):
            yield tuple(group)
            group, n_bytes = [], 0
        if is_divided:
            for start in range(0, size, piece_bytes):
                stop = min(start + piece_bytes, size)
                yield (replace(file, start=start, stop=stop, continues=start > 0),)
        else:
            group.append(file)
            n_bytes += size
    if group:
        yield tuple(group)


def find_range(step: TextFile, piece_bytes: int = PIECE_BYTES) -> TextFile:
    """Returns the lines that belong to a step of the grid of a file.

    Both ends move to the next beginning of a line. If no line begins in a step, the step is empty,
    and its bytes belong to the last non-empty step before it. A whole file is returned unchanged.
    """
    if step.stop is None:
        return step
    size = step.stored_size
    start = step.find_line(step.start, piece_bytes) if step.continues else 0
    if start is None:
        return replace(step, start=step.stop, stop=step.stop)
    stop, place = None, step.stop
    while stop is None and place < size:
        stop = step.find_line(place, piece_bytes)
        place += piece_bytes
    return replace(step, start=start, stop=size if stop is None else stop)


def resume_documents(finder: DocumentFinder, file: TextFile) -> None:
    """Brings a new finder into the state that it has at the beginning of a range of a file.

    The state depends only on the text from the last non-blank line on, so the finder reads that
    text.
    """
    if not file.continues or not file.start:
        return
    text, start = b"", file.start
    while start and not _find_last_line(text):
        n_bytes = min(start, max(_BLOCK_BYTES, len(text)))
        if text.strip() and len(text) + n_bytes > _MAX_LINE_BYTES:
            break
        before = replace(file, start=start - n_bytes, stop=start)
        text, start = b"".join(before.iterate_blocks()) + text, start - n_bytes
    last = _find_last_line(text)
    is_whole = not start  # whether there is nothing before `text`
    finder.find(Chunk(text[last:], is_whole and not last, is_whole or last > 0))


def _find_last_line(text: bytes) -> int:
    """Returns where the last non-blank line begins; 0 if it begins at or before the text."""
    return text.rfind(b"\n", 0, len(text.rstrip(_WHITE_SPACE))) + 1
