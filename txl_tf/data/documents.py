"""Where documents begin in a text."""

import re
from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np

from txl_tf.data.codec import NO_OFFSETS
from txl_tf.data.text_files import Chunk
from txl_tf.errors import UserError

Rule = Literal["none", "file", "line", "blank_line", "title", "separator"]
RULES: tuple[str, ...] = get_args(Rule)

_BLANK_LINES = re.compile(rb"^(?:[ \t\r\f\v]*\n)+", re.MULTILINE)
# A title of WikiText, " = Title = "; those of sections have more signs, " = = Section = = ".
_TITLE = re.compile(rb" = (?!= )[^\n]*(?<! =) =[ \t\r]*\n")


class DocumentFinder:
    """Finds the beginnings of documents in the chunks of a text, one after the other.

    Args:
        rule: "none": the text is one document that began before; "file": a document is a file;
            "line": a line; "blank_line": a run of lines between blank ones; "title": a WikiText
            article, from its title on; "separator": what follows a line that is `separator`.
            All but "none" have a file begin a document.
        separator: The line that ends a document, without white space around it.

    Raises:
        UserError: If `rule` is unknown, or `separator` is not a line or not for this rule.
    """

    def __init__(self, rule: str, separator: str | None = None) -> None:
        if rule not in RULES:
            raise UserError(f"`rule` must be one of {RULES}. Received: rule={rule!r}")
        if (rule == "separator") != (separator is not None):
            raise UserError(
                "`separator` must be given with rule='separator', and only then. "
                f"Received: rule={rule!r}, separator={separator!r}"
            )
        if separator is not None and (not separator.strip() or "\n" in separator):
            raise UserError(
                f"`separator` must be one line that is not blank. Received: separator={separator!r}"
            )
        self._rule = rule
        self._separator = re.compile(
            rb"^[ \t]*" + re.escape((separator or "").strip().encode("utf-8")) + rb"[ \t\r]*\n",
            re.MULTILINE,
        )
        self._is_open = False  # whether the next line begins a document, by the line before it
        self._is_head = True  # whether nothing but white space came yet in this file

    def find(self, chunk: Chunk) -> np.ndarray:
        """Returns the byte offsets at which documents begin in the next chunk, (k,) int64.

        A document begins where a line begins. The chunks of a text must come in order.
        """
        if chunk.begins_file:
            self._is_open, self._is_head = False, True
        if self._rule == "none":
            return NO_OFFSETS
        begins = [0] if chunk.begins_file else []
        if self._rule != "file":
            # The first line was begun in the chunk before: it begins nothing here.
            first = 0 if chunk.begins_line else chunk.text.find(b"\n") + 1
            if chunk.begins_line or first:
                begins += self._find_lines(chunk.text, first)
        if self._rule in ("blank_line", "title") and self._is_head:
            # Blank lines at the head of a file are no document.
            head = len(chunk.text) - len(chunk.text.lstrip())
            begins = [0] * chunk.begins_file + [begin for begin in begins if begin > head]
            self._is_head = head == len(chunk.text)
        return np.unique(np.array(begins, np.int64))

    def _find_lines(self, text: bytes, first: int) -> Iterator[int]:
        """Yields the offsets, from `first` on, where documents begin, and remembers the end."""
        if self._rule == "line":
            yield from _iterate_lines(text, first)
            return
        pattern = self._separator if self._rule == "separator" else _BLANK_LINES
        ends = [match.end() for match in pattern.finditer(text, first)]
        if self._is_open:
            ends.insert(0, first)
        self._is_open = bool(ends) and ends[-1] == len(text)
        for end in ends:
            if end < len(text) and self._may_begin(text, end):
                yield end

    def _may_begin(self, text: bytes, place: int) -> bool:
        """Returns whether the line at a place, which follows an end, begins a document."""
        if self._rule == "title":
            return _TITLE.match(text, place) is not None
        return self._rule != "blank_line" or _BLANK_LINES.match(text, place) is None


def _iterate_lines(text: bytes, first: int) -> Iterator[int]:
    """Yields the offsets of the lines of a text from the one at `first` on."""
    place = first
    while 0 <= place < len(text):
        yield place
        place = text.find(b"\n", place) + 1 or -1
