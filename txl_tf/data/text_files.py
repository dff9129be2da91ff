"""Reading text files of any size, a chunk at a time."""

import gzip
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import IO, Literal, NamedTuple, cast

from txl_tf.data.files import is_remote
from txl_tf.errors import UserError

EncodingErrors = Literal["strict", "replace"]
CHUNK_BYTES = 2**22
# What stands between two places to cut is held in memory, and a small .zip can unpack to any size.
_MAX_UNCUT_BYTES = 2**26

_NUL_FREE_LEVELS = ("word",)


class TextError(UserError):
    """A text file that is missing, damaged or not a text."""


@dataclass(frozen=True)
class TextFile:
    """A text file, or a stretch of one.

    Args:
        path: Where it lies; .gz, .xz and .zip are unpacked as they are read.
        member: Its name in a .zip.
        start: Where the text begins, in bytes.
        stop: Where it ends; `None`: with the file.
    """

    path: Path
    member: str | None = None
    start: int = 0
    stop: int | None = None

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}/{self.member}"

    @property
    def size(self) -> int | None:
        """The bytes of the text; `None` if only reading it can tell."""
        if self.stop is not None:
            return self.stop - self.start
        if self.member is not None:
            with zipfile.ZipFile(self.path) as archive:
                return archive.getinfo(self.member).file_size - self.start
        if self.path.suffix in _OPENERS:
            return None
        return self.path.stat().st_size - self.start

    def iterate_blocks(self, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        """Yields the text in blocks.

        Raises:
            TextError: If the file cannot be unpacked.
        """
        with _tell_damage(str(self)), self._open() as file:
            _skip(file, self.start)
            left = self.stop - self.start if self.stop is not None else None
            while block := file.read(size if left is None else min(size, left)):
                yield block
                left = left if left is None else left - len(block)

    def _open(self) -> IO[bytes]:
        if self.member is not None:
            return _open_member(self.path, self.member)
        return _OPENERS.get(self.path.suffix, _open_plain)(self.path)


@dataclass(frozen=True)
class StandardInput(TextFile):
    """What comes in by the standard input, which can be read once."""

    path: Path = Path("-")

    def __str__(self) -> str:
        return "standard input"

    @property
    def size(self) -> int | None:
        """Not known."""
        return None

    def _open(self) -> IO[bytes]:
        return open(0, "rb", buffering=0, closefd=False)


class Chunk(NamedTuple):
    """A piece of a text file.

    Attributes:
        text: Some bytes.
        begins_file: Whether they are the first of a file.
        begins_line: Whether they begin a line, or go on with one.
    """

    text: bytes
    begins_file: bool
    begins_line: bool


@dataclass(frozen=True)
class TextSource:
    """The files of a split, read as often as needed.

    Args:
        files: In order.
        level: What it is split into: chunks end where a line ends; in long lines, before a space,
            and at levels "byte" and "char" anywhere between two symbols.
        encoding_errors: What to do with bytes that are not UTF-8: "strict" is an error, "replace"
            puts U+FFFD in their place. At level "byte" they are as good as any.
        parse: Changes the raw bytes, given in pieces that end at a space, into the text.
    """

    files: tuple[TextFile, ...]
    level: str
    encoding_errors: EncodingErrors = "strict"
    parse: Callable[[bytes], bytes] | None = None

    @property
    def size(self) -> int | None:
        """The bytes of all files; `None` if only reading them can tell."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def iterate_chunks(self) -> Iterator[Chunk]:
        """Yields the text, a few megabytes at a time.

        At level "word" a line break is added to a file whose last line has none.

        Raises:
            TextError: If a file is damaged, is not UTF-8, at level "word" has a NUL byte, or at
                levels "word" and "subword" has more than 64 MiB without a space or a line break.
        """
        for file in self.files:
            begins_file = begins_line = True
            offset = n_lines = 0
            for text in self._iterate_texts(file):
                checked = self._check(text, file, offset, n_lines)
                yield Chunk(checked, begins_file, begins_line)
                begins_file, begins_line = False, checked.endswith(b"\n")
                offset += len(text)
                n_lines += text.count(b"\n")
            if self.level == "word" and not begins_line:
                yield Chunk(b"\n", False, False)

    def iterate_texts(self) -> Iterator[bytes]:
        """Yields the text of the chunks alone."""
        return (chunk.text for chunk in self.iterate_chunks())

    def _iterate_texts(self, file: TextFile) -> Iterator[bytes]:
        if self.parse is None:
            return cut_blocks(file.iterate_blocks(), self.level, name=str(file))
        raw = cut_blocks(file.iterate_blocks(), "word", name=str(file))
        parsed = (self.parse(text) for text in raw)
        return (text for text in parsed if text)

    def _check(self, text: bytes, file: TextFile, offset: int, n_lines: int) -> bytes:
        if self.level in _NUL_FREE_LEVELS and b"\0" in text:
            place = text.index(b"\0")
            lines = n_lines + text.count(b"\n", 0, place)
            self._fail(file, lines, offset + place, "a NUL byte, which no word holds")
        if self.level == "byte" or text.isascii():
            return text
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            if self.encoding_errors == "replace":
                return text.decode("utf-8", errors="replace").encode("utf-8")
            what = f"byte 0x{text[error.start]:02x}, which is not UTF-8 ({error.reason})"
            lines = n_lines + text.count(b"\n", 0, error.start)
            self._fail(file, lines, offset + error.start, what)
        return text

    def _fail(self, file: TextFile, lines: int, offset: int, what: str) -> None:
        advice = "--encoding_errors=replace reads on" if "UTF-8" in what else "is it a text?"
        raise TextError(
            f"`{file}`, line {lines + 1}, byte offset {file.start + offset}: {what}; {advice}."
        )


def find_files(patterns: Sequence[str]) -> tuple[TextFile, ...]:
    """Finds the files that patterns name.

    Args:
        patterns: Paths, with `*`, `?`, `[...]` and `**` as in a shell.

    Returns:
        The files, pattern by pattern, those of one in the order of their names, each once; the
        members of a .zip one by one, in the order of their names.

    Raises:
        TextError: If a pattern names no file, or a .zip is damaged.
    """
    paths: dict[str, None] = {}
    for pattern in patterns:
        expanded = os.path.expanduser(pattern)
        # A file may be called "a[1].txt".
        found = [expanded] if os.path.isfile(expanded) else sorted(glob(expanded, recursive=True))
        files = [path for path in found if os.path.isfile(path)]
        if is_remote(pattern):
            raise TextError(f"texts are read from files here: copy {pattern!r} first.")
        if not files:
            raise TextError(_explain_no_file(pattern, found))
        paths.update(dict.fromkeys(files))
    return tuple(file for path in paths for file in _list_texts(Path(path)))


def _explain_no_file(pattern: str, found: Sequence[str]) -> str:
    """Returns why a pattern names no file, from the paths that it matches."""
    if len(found) != 1 or not os.path.exists(found[0]):
        return f"no file matches {pattern!r}."
    if os.path.isdir(found[0]):
        return f"{pattern!r} is a folder: {os.path.join(pattern, '*')!r} names the files in it."
    return f"{pattern!r} is no regular file."


def cut_blocks(blocks: Iterator[bytes], level: str, *, name: str = "the text") -> Iterator[bytes]:
    """Joins and cuts blocks anew so that each ends where a text may be cut.

    Args:
        blocks: The text.
        level: Chooses where, see `TextSource`.
        name: Of the text, for the error.

    Raises:
        TextError: If there is no place to cut in 64 MiB.
    """
    rest = b""
    for block in blocks:
        # Only the new block is searched: the rest has no place to cut.
        place = find_cut(block, level)
        if place == 0:
            rest += block
            if len(rest) > _MAX_UNCUT_BYTES:
                raise TextError(
                    f"`{name}` has more than {_MAX_UNCUT_BYTES:,} bytes without a space or a line "
                    "break; is it a text of words?"
                )
            continue
        yield rest + block[:place]
        rest = block[place:]
    if rest:
        yield rest


def find_cut(text: bytes, level: str) -> int:
    r"""Returns how much of a text can be taken so that the rest can be read by itself.

    >>> find_cut(b"a b\nc d", "word"), find_cut(b"a b", "word"), find_cut(b"ab", "char")
    (4, 1, 2)
    """
    place = text.rfind(b"\n") + 1
    if place:
        return place
    if level in ("word", "subword"):
        return max(text.rfind(b" "), 0)
    if level == "byte":
        return len(text)
    # Not inside a character: it begins with a byte that has not the bits 10 in front.
    place = len(text)
    for back in range(1, min(4, len(text)) + 1):
        if text[-back] & 0xC0 != 0x80:
            is_whole = back >= _count_bytes(text[-back])
            return place if is_whole else place - back
    # No byte here begins a character: these go on with one of the block before, or with none.
    return place if place >= 4 else 0


def _count_bytes(lead: int) -> int:
    """Returns the bytes of a character of UTF-8 by its first one."""
    return 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


@contextmanager
def _tell_damage(name: str) -> Iterator[None]:
    """Turns the errors of unpacking a file into those of its user."""
    try:
        yield
    except RuntimeError as error:
        # Of a .zip: a password, or a compression that Python does not know.
        raise TextError(f"`{name}` cannot be unpacked: {error}") from error
    except (EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # it is missing, or may not be read
        raise TextError(f"`{name}` is damaged: {error}") from error


def _list_texts(path: Path) -> list[TextFile]:
    if path.suffix != ".zip":
        return [TextFile(path)]
    with _tell_damage(str(path)), zipfile.ZipFile(path) as archive:
        members = sorted({name for name in archive.namelist() if not name.endswith("/")})
    if not members:
        raise TextError(f"`{path}` holds no file.")
    return [TextFile(path, member) for member in members]


def _open_plain(path: Path) -> IO[bytes]:
    return open(path, "rb", buffering=0)


def _open_gzip(path: Path) -> IO[bytes]:
    if not path.stat().st_size:
        raise EOFError("it is empty")  # which Python takes for no text
    return cast(IO[bytes], gzip.open(path, "rb"))


def _open_xz(path: Path) -> IO[bytes]:
    return lzma.open(path, "rb")


def _open_member(path: Path, member: str) -> IO[bytes]:
    with zipfile.ZipFile(path) as archive:
        # The member stays open when the archive is closed.
        return archive.open(member)


_OPENERS: dict[str, Callable[[Path], IO[bytes]]] = {".gz": _open_gzip, ".xz": _open_xz}


def _skip(file: IO[bytes], n_bytes: int) -> None:
    if n_bytes:
        file.seek(n_bytes)
