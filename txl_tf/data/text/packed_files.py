"""Unpacks files as they are read; the first bytes of a file tell how it is packed."""

import bz2
import gzip
import io
import lzma
import os
import re
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from txl_tf.errors import UserError

_HEAD_BYTES = 512  # the header of a tar archive
# The first bytes of packed files that are read, by the usual ending of their names.
_READ = {
    ".gz": rb"\x1f\x8b\x08",
    ".xz": rb"\xfd7zXZ\x00",
    ".lzma": rb"]\x00\x00.{2}(?:\xff{8}|.{5}\x00{3})",
    ".bz2": rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)",
}
_REFUSED = {
    "7z": rb"7z\xbc\xaf\x27\x1c",
    "ar": rb"!<arch>\n",
    "cab": rb"MSCF\x00{4}",
    "compress": rb"\x1f[\x9d\xa0]",
    "cpio": rb"07070[12][0-9A-Fa-f]{104}",
    "lz4": rb"\x04\x22\x4d\x18|\x02\x21\x4c\x18",
    "lzip": rb"LZIP\x01",
    "lzop": rb"\x89LZO\x00",
    "rar": rb"Rar!\x1a\x07",
    "snappy": rb"\xff\x06\x00\x00sNaPpY",
    "zip": rb"PK(?:\x03\x04|\x05\x06|\x07\x08)",
    "zstd": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18",
}


class _Gzip(gzip.GzipFile):
    """Stops with a warning at trailing bytes that are not gzip data, like the program gzip."""

    def __init__(self, stored: Any, name: str) -> None:
        super().__init__(fileobj=stored)
        self._name = name
        self._has_begun = self._is_over = False

    def read(self, size: int | None = None) -> bytes:
        """Returns the next `size` bytes, at least 0; fewer at the end."""
        block = bytearray()
        limit = io.DEFAULT_BUFFER_SIZE if size is None else size
        try:
            while (
                not self._is_over
                and len(block) < limit
                and (part := self.read1(limit - len(block)))
            ):
                self._has_begun = True
                block += part
        except gzip.BadGzipFile as error:
            if not self._has_begun or "Not a gzipped file" not in str(error):
                raise
            self._is_over = True
            line = f"warning: `{self._name}`: what follows its gzip data is ignored"
            print(line, file=sys.stderr)
        return bytes(block)


def find_packing(stored: Any, name: str) -> str | None:
    """Returns how a file is packed, as a key of `_READ`; `None` for plain text.

    `stored` is a file with the method `peek`. Its name matters only if the first bytes match no
    packing; if the file is damaged, unpacking it then raises an error.

    Raises:
        UserError: If the file is an archive, or is packed in an unsupported way.
    """
    ending = os.path.splitext(name)[1]
    if ending in _READ and not stored.peek(1):
        raise EOFError("it is empty")  # Python would read it as an empty text
    return _identify(stored, name) or (ending if ending in _READ else None)


def _identify(stored: Any, name: str) -> str | None:
    head = stored.peek(_HEAD_BYTES)
    for kind, pattern in _READ.items():
        if re.match(pattern, head, re.DOTALL):
            return kind
    for kind, pattern in _REFUSED.items():
        if re.match(pattern, head):
            raise UserError(_refuse(name, kind))
    if _begins_tar(head):
        raise UserError(_refuse(name, "tar"))
    return None


@contextmanager
def open_unpacked(stored: Any, name: str, *, is_member: bool = False) -> Iterator[IO[bytes]]:
    """Yields a stored file, unpacked if necessary; `is_member` is whether it is inside a .zip."""
    packing = find_packing(stored, name)
    if packing is None:
        yield stored
        return
    if is_member:
        raise UserError(_refuse(name, packing))
    with _unpack(stored, packing, name) as file:
        if inner := _identify(file, name):
            raise UserError(_refuse(name, inner))
        yield file


def _unpack(stored: Any, packing: str, name: str) -> Any:
    if packing == ".gz":
        return _Gzip(stored, name)
    return bz2.BZ2File(stored) if packing == ".bz2" else lzma.LZMAFile(stored)


def _refuse(name: str, kind: str) -> str:
    is_unnamed = kind == "zip" and os.path.isfile(name) and not name.endswith(".zip")
    hint = ", or call it .zip if all files in it are texts" if is_unnamed else ""
    return (
        f"`{name}` holds a {kind.lstrip('.')} file, not a text: unpack it first{hint}. Texts may "
        "be packed with gzip, xz, bzip2 or zip"
    )


def _begins_tar(head: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(head[:_HEAD_BYTES], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


class Pipe(io.BufferedReader):
    """A stream that returns bytes as soon as they arrive."""

    def read(self, size: int | None = -1) -> bytes:
        """Returns the next bytes, at most `size`; none at the end."""
        return self.read1(-1 if size is None else size)


@contextmanager
def explain_damage(name: str) -> Iterator[None]:
    """Re-raises the errors of unpacking a file as `UserError`."""
    try:
        yield
    except RuntimeError as error:
        # A .zip with a password, or with a compression that Python does not support.
        raise UserError(f"`{name}` cannot be unpacked: {error}") from error
    except (EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, OSError) as error:
        if isinstance(error, UserError) or getattr(error, "filename", None) is not None:
            raise  # the file is missing or unreadable
        raise UserError(f"`{name}` is damaged: {error}") from error
