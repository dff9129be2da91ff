"""The numbers and strings in a pickle; every length is checked before anything is read."""

import codecs
import mmap
import re
import struct
from typing import Any

from txl_tf.release.pickled_objects import PickleError

_MAX_INT_BYTES = 256
_MAX_NUMBER = 400  # characters; the time of `int` grows with their square
_MAX_NAME = 256
_BIG = 2**16  # bytes; longer strings are not copied
_DECIMAL = re.compile(rb"[+-]?[0-9]+L?")
# A string as Python 2's `repr` writes it; Python would warn of other escapes.
_ESCAPED = re.compile(rb"""(?:[^\\]++|\\(?:x[0-9a-fA-F]{2}|[\\'"nrt]))*+""")


class ValueReader:
    """Reads a pickle from its first byte to its last.

    Every method raises `PickleError`, `IndexError` or `ValueError` if the pickle is damaged.

    Args:
        data: The pickle.
    """

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self._data = data
        self._size = len(data)
        self._view = memoryview(data)
        self._at = 0

    def check_left(self, count: int) -> None:
        """Checks that this many bytes are left."""
        if count > self._size - self._at:
            raise PickleError("it is truncated")

    def take(self, count: int) -> bytes:
        """Returns the next bytes."""
        start = self._at
        self._at = end = start + count
        if end > self._size:
            raise PickleError("it is truncated")
        return self._data[start:end]

    def take_big(self, count: int) -> bytes | memoryview:
        """Returns the next bytes; a view of them if there are many."""
        if count <= _BIG:
            return self.take(count)
        self.check_left(count)
        start = self._at
        self._at = start + count
        return self._view[start : self._at]

    def take_byte(self) -> int:
        """Returns the next byte."""
        byte = self._data[self._at]
        self._at += 1
        return byte

    def take_number(self, n_bytes: int) -> int:
        """Returns an unsigned integer."""
        start = self._at  # as `take`, without another call: most operations come here
        self._at = end = start + n_bytes
        if end > self._size:
            raise PickleError("it is truncated")
        return int.from_bytes(self._data[start:end], "little")

    def take_signed(self) -> int:
        """Returns a signed integer of four bytes."""
        return int.from_bytes(self.take(4), "little", signed=True)

    def take_long(self, size_bytes: int) -> int:
        """Returns a signed integer that follows its length, a number of `size_bytes` bytes."""
        size = self.take_number(size_bytes)
        if size > _MAX_INT_BYTES:
            raise PickleError(f"it has a number of more than {_MAX_INT_BYTES} bytes")
        return int.from_bytes(self.take(size), "little", signed=True)

    def take_float(self) -> float:
        """Returns a float of eight bytes."""
        return struct.unpack(">d", self.take(8))[0]

    def take_text(self, size_bytes: int) -> str:
        """Returns a text that follows its length, a number of `size_bytes` bytes."""
        return str(self.take_big(self.take_number(size_bytes)), "utf-8", "surrogatepass")

    def take_bytes(self, size_bytes: int) -> bytes | memoryview:
        """Returns bytes that follow their length, a number of `size_bytes` bytes."""
        return self.take_big(self.take_number(size_bytes))

    def take_line(self, limit: int | None = None) -> bytes:
        """Returns the rest of the line."""
        start = self._at
        end = self._data.find(b"\n", start)
        if end < 0:
            raise PickleError("it is truncated")
        if limit is not None and end - start > limit:
            raise PickleError(f"it has a number or a name of more than {limit} characters")
        self._at = end + 1
        return self._data[start:end]

    def take_name_line(self) -> str:
        """Returns a line that is a part of a name."""
        return self.take_line(_MAX_NAME).decode("utf-8", "backslashreplace")

    def take_int_line(self) -> int:
        """Returns a line that is an integer in decimal digits."""
        line = self.take_line(_MAX_NUMBER)
        if not _DECIMAL.fullmatch(line):
            raise PickleError(f"{line[:20]!r} is not a number")
        return int(line.removesuffix(b"L"))

    def take_int_or_bool_line(self) -> int:
        """Returns a line that is an integer in decimal digits; 00 and 01 are a bool."""
        flag = {b"00\n": False, b"01\n": True}.get(self._data[self._at : self._at + 3])
        if flag is None:
            return self.take_int_line()
        self._at += 3
        return flag

    def take_float_line(self) -> float:
        """Returns a line that is a float in decimal digits."""
        return float(self.take_line(_MAX_NUMBER))

    def take_bytes_line(self) -> bytes:
        """Returns a line that is a `str` as Python 2 prints it."""
        line = self.take_line()
        if len(line) < 2 or line[0] != line[-1] or line[:1] not in (b"'", b'"'):
            raise PickleError("a string has no quotes")
        text = line[1:-1]
        if not _ESCAPED.fullmatch(text):
            raise PickleError("a string has an unknown escape")
        decoded: Any = codecs.escape_decode(text)[0]
        return decoded

    def take_text_line(self) -> str:
        """Returns a line that is a text in Python's raw-unicode-escape."""
        return self.take_line().decode("raw-unicode-escape")
