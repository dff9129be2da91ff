"""Finding the document boundaries in a text."""

import re
from collections.abc import Iterator

import numpy as np

from txl_tf.data.text.codec import NO_OFFSETS
from txl_tf.data.text.text_files import Chunk
from txl_tf.errors import UserError

RULES = ("none", "file", "line", "blank_line", "title", "separator")

_LINE_BEGIN = re.compile(rb"^.", re.MULTILINE | re.DOTALL)
_BLANK_LINES = re.compile(rb"^(?:[ \t\r\f\v]*\n)+", re.MULTILINE)
# The title of a WikiText article, " = Title = "; section titles have more signs, " = = Plot = = ".
# A tokenized line has no space at its beginning.
_TITLE = re.compile(rb" ?= (?!= )[^\n]*(?<! =) =[ \t\r]*\n")


class DocumentFinder:
    """Finds the beginnings of documents in the chunks of a text, one chunk after the other.

    The rule says what a document is. "none": the whole text continues one document; "file": each
    file; "line": each line; "blank_line": the lines between blank lines; "title": a WikiText
    article with its title; "separator": the lines between lines that equal `separator`. With every
    rule except "none", each file begins a document.
    """

    def __init__(self, rule: str, separator: str | None = None) -> None:
        if separator is not None and (not separator.strip() or "\n" in separator):
            raise UserError(
                f"`separator` must be one line that is not blank. Received: separator={separator!r}"
            )
        self._rule = rule
        self._separator = re.compile(
            rb"^[ \t]*"
            + re.escape((separator or "").strip().encode("utf-8", "surrogateescape"))
            + rb"[ \t\r]*\n",
            re.MULTILINE,
        )
        self._is_open = False  # whether the last line ended a document
        self._is_head = True  # whether this file contained only white space so far

    def find(self, chunk: Chunk) -> np.ndarray:
        """Returns the byte offsets at which documents begin in the next chunk, (k,) int64.

        A document begins at the beginning of a line. The chunks of a text must come in order.
        """
        if chunk.begins_file:
            self._is_open, self._is_head = False, True
        if self._rule == "none":
            return NO_OFFSETS
        begins = [0] if chunk.begins_file else []
        if self._rule != "file":
            # A line that continues from the previous chunk does not begin here.
            first = 0 if chunk.begins_line else chunk.text.find(b"\n") + 1
            if chunk.begins_line or first:
                begins += self._find_lines(chunk.text, first)
        if self._rule in ("blank_line", "title") and self._is_head:
            # Blank lines at the head of a file are not a document.
            head = len(chunk.text) - len(chunk.text.lstrip())
            begins = [0] * chunk.begins_file + [begin for begin in begins if begin > head]
            self._is_head = head == len(chunk.text)
        return np.unique(np.array(begins, np.int64))

    def _find_lines(self, text: bytes, first: int) -> Iterator[int]:
        """Yields the offsets at which documents begin from line `first` on; updates the state."""
        if self._rule == "line":
            yield from (match.start() for match in _LINE_BEGIN.finditer(text, first))
            return
        pattern = self._separator if self._rule == "separator" else _BLANK_LINES
        ends = [match.end() for match in pattern.finditer(text, first)]
        if self._is_open:
            ends.insert(0, first)
        self._is_open = bool(ends) and ends[-1] == len(text)
        for end in ends:
            if end < len(text) and self._may_begin(text, end):
                yield end

    def _may_begin(self, text: bytes, offset: int) -> bool:
        """Returns whether the line at an offset, where a document ended, begins another one."""
        if self._rule == "title":
            return _TITLE.match(text, offset) is not None
        return self._rule != "blank_line" or _BLANK_LINES.match(text, offset) is None
