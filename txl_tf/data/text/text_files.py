"""Reading text files of any size, one chunk at a time."""

import functools
import io
import itertools
import os
import sys
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from txl_tf.data.files import find_matches, get_size, is_remote, open_file
from txl_tf.data.text.packed_files import Pipe, explain_damage, find_packing, open_unpacked
from txl_tf.errors import UserError, convert_encoding, explain_errors

EncodingErrors = Literal["strict", "replace"]
CHUNK_BYTES = 2**22
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HEAD_BYTES = 512  # binary data usually have a NUL in them
# Text between two possible cuts is held in memory, and a small .zip can unpack to any size.
_MAX_UNCUT_BYTES = 2**26
_SEARCH_BYTES = 2**16  # read at once to find a line


@dataclass(frozen=True)
class TextFile:
    """A text file, or a range of its bytes; packed files are unpacked as they are read."""

    path: Path | str  # or an address
    member: str | None = None  # of a .zip
    start: int = 0  # byte offset
    stop: int | None = None  # byte offset; `None` for the end of the file
    continues: bool = False  # whether the range continues a text, at the beginning of a line

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}/{self.member}"

    @property
    def size(self) -> int | None:
        """The size of the text in bytes; `None` if only reading the text would tell."""
        if self.stop is not None:
            return self.stop - self.start
        if self.member is not None:
            with open_file(str(self.path)) as stored, zipfile.ZipFile(stored) as archive:
                return archive.getinfo(self.member).file_size - self.start
        return None if self.is_packed else self.stored_size - self.start

    @property
    def is_packed(self) -> bool:
        """Whether the text is packed: it is in a .zip, or its first bytes say so."""
        if self.member is not None:
            return True
        with explain_damage(str(self)), self._open_stored() as stored:
            return find_packing(stored, str(self)) is not None

    @property
    def stored_size(self) -> int:
        """The size of the whole file, or of its archive, in bytes."""
        size = get_size(str(self.path))
        if size is None:
            raise FileNotFoundError(2, "No such file or directory", str(self.path))
        return size

    def iterate_blocks(self, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        """Yields the text in blocks."""
        with explain_damage(str(self)), self._open() as file:
            if self.start:
                file.seek(self.start)
            left = self.stop - self.start if self.stop is not None else None
            while block := file.read(size if left is None else min(size, left)):
                yield block
                left = left if left is None else left - len(block)

    def find_line(self, offset: int, limit: int | None = None) -> int | None:
        """Returns the offset of the first line that begins at or after an offset above 0.

        The whole file is searched, beyond the end of this range too, or only `limit` bytes from the
        offset on. The end of the file counts if a line break is before it. `None` if there is none.
        """
        place = offset - 1  # the line break before the line
        stop = None if limit is None else place + limit
        for block in replace(self, start=place, stop=stop).iterate_blocks(_SEARCH_BYTES):
            found = block.find(b"\n")
            if found >= 0:
                return place + found + 1
            place += len(block)
        return None

    def count_lines_before(self) -> int:
        """Returns the number of lines of the file before this range."""
        if not self.start:
            return 0
        before = replace(self, start=0, stop=self.start, continues=False)
        return sum(block.count(b"\n") for block in before.iterate_blocks())

    def check(self) -> None:
        """Raises `UserError` if the file is an archive, damaged, or packed in another way."""
        with explain_damage(str(self)), self._open():
            pass

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        is_member = self.member is not None
        with (
            self._open_stored() as stored,
            open_unpacked(stored, str(self), is_member=is_member) as file,
        ):
            yield file

    @contextmanager
    def _open_stored(self) -> Iterator[Any]:
        """Opens the stored file, or the member of a .zip; the result has a method `peek`."""
        with open_file(str(self.path)) as stored:
            if self.member is None:
                yield stored
                return
            with zipfile.ZipFile(stored) as archive, archive.open(self.member) as member:
                yield member


@dataclass(frozen=True)
class StandardInput(TextFile):
    """The standard input, which can be read only once."""

    path: Path = Path("-")

    def __str__(self) -> str:
        return "standard input"

    @property
    def size(self) -> int | None:
        """Unknown."""
        return None

    @contextmanager
    def _open_stored(self) -> Iterator[Any]:
        yield Pipe(io.FileIO(0, closefd=False))


class Chunk(NamedTuple):
    """A chunk of a text file, whether it begins the file or a line, and its byte offset."""

    text: bytes
    begins_file: bool
    begins_line: bool
    offset: int = 0


@dataclass(frozen=True)
class TextSource:
    """The text of a split, which can be read repeatedly."""

    files: tuple[TextFile, ...]  # in order
    # Decides where chunks may end: at the end of a line; in long lines before a space or, at levels
    # "byte" and "char", between any two symbols.
    level: str
    # Bytes that are not UTF-8 raise an error, or become U+FFFD; level "byte" allows any bytes.
    encoding_errors: EncodingErrors = "strict"
    # Convert raw bytes, in chunks that end before a space or at the end of a line, to text: each
    # function converts what the one before it returns.
    parse: tuple[Callable[[bytes], bytes], ...] = ()

    @property
    def size(self) -> int | None:
        """The size of all files in bytes; `None` if only reading them would tell."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def iterate_chunks(self) -> Iterator[Chunk]:
        """Yields the text, a few megabytes at a time.

        A byte order mark at the beginning of a file is left out, except at level "byte". At level
        "word", a line break is added to a file whose last line has none.
        """
        marked, binary = [], []
        for file in self.files:
            begins_file, begins_line = not file.continues, True
            offset = n_lines = 0
            for text in self._iterate_texts(file):
                checked, begin = self._check(text, file, offset, n_lines), file.start + offset
                if not begin:
                    if _is_binary(text):
                        binary.append(str(file))
                    if text.startswith(BYTE_ORDER_MARK) and self.level == "byte":
                        marked.append(str(file))
                    elif text.startswith(BYTE_ORDER_MARK):
                        begin = len(BYTE_ORDER_MARK)
                        checked = checked[begin:]
                if checked:
                    yield Chunk(checked, begins_file, begins_line, begin)
                    begins_file, begins_line = False, checked.endswith(b"\n")
                offset += len(text)
                n_lines += text.count(b"\n")
            if self.level == "word" and not begins_line:
                yield Chunk(b"\n", False, False)
        if marked:
            _warn(f"level byte keeps the byte order mark that begins {_list_some(marked)}")
        if binary:
            _warn(f"read as it is, but it does not look like text: {_list_some(binary)}")

    def _iterate_texts(self, file: TextFile) -> Iterator[bytes]:
        level = "word" if self.parse else self.level
        for raw in cut_blocks(file.iterate_blocks(), level, name=str(file)):
            text = raw
            with explain_errors(f"`{file}`", UserError):
                for parse in self.parse:
                    text = parse(text)
            if text:
                yield text

    def _check(self, text: bytes, file: TextFile, offset: int, n_lines: int) -> bytes:
        if self.level == "word" and b"\0" in text:
            place = text.index(b"\0")
            lines = n_lines + text.count(b"\n", 0, place)
            what = "a NUL byte, which no word may contain; is it a text?"
            self._fail(file, lines, offset + place, what)
        if self.level == "byte" or text.isascii():
            return text
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            if self.encoding_errors == "replace":
                return text.decode("utf-8", errors="replace").encode("utf-8")
            what = f"byte 0x{text[error.start]:02x}, which is not UTF-8 ({error.reason})"
            advice = f"{_advise_on_encoding(text)} --encoding_errors=replace continues"
            lines = n_lines + text.count(b"\n", 0, error.start)
            self._fail(file, lines, offset + error.start, f"{what}; {advice}.")
        return text

    def _fail(self, file: TextFile, lines: int, offset: int, what: str) -> None:
        if self.parse:  # lines and offsets are those of the parsed text
            raise UserError(f"`{file}`: {what}")
        lines += file.count_lines_before()
        raise UserError(f"`{file}`, line {lines + 1}, byte offset {file.start + offset}: {what}")


def _is_binary(text: bytes) -> bool:
    return b"\0" in text[:_HEAD_BYTES] or text.startswith(b"%PDF-")


def _advise_on_encoding(text: bytes) -> str:
    """Returns advice about a piece of a text that is not UTF-8."""
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        return f"{convert_encoding('UTF-16')};"
    return "is it a text?" if _is_binary(text) else f"{convert_encoding()};"


@functools.cache
def _warn(line: str) -> None:
    """Prints a warning once per process, as a text may be read several times."""
    print(f"warning: {line}", file=sys.stderr)


def read_small_text(path: str | Path) -> str:
    """Returns the text of a small file in UTF-8, unpacked and without a byte order mark."""
    data = b"".join(TextFile(path).iterate_blocks())
    with explain_errors(f"`{path}` is not UTF-8", UnicodeDecodeError):
        return data.decode("utf-8-sig")


def find_files(patterns: Sequence[str]) -> tuple[TextFile, ...]:
    """Returns the files that match patterns, with `*`, `?`, `[...]` and `**` as in a shell.

    The files of each pattern and the members of a .zip are sorted by name. A file that several
    patterns match is listed once, with a printed warning.
    """
    paths: dict[str, str] = {}  # paths as given, by absolute path
    repeated: dict[str, None] = {}
    matched = (_match_files(pattern, is_one=len(patterns) == 1) for pattern in patterns)
    for path in itertools.chain.from_iterable(matched):
        key = path if is_remote(path) else os.path.abspath(path)
        if key in paths:
            repeated[paths[key]] = None
        paths.setdefault(key, path)
    if repeated:
        line = f"given more than once, but read once: {_list_some(repeated)}; a copy is read again"
        print(f"warning: {line}", file=sys.stderr)
    return tuple(file for path in paths.values() for file in _list_texts(path))


def _match_files(pattern: str, *, is_one: bool) -> list[str]:
    """Returns the paths or addresses of the files that match a pattern; at least one must.

    `is_one` is whether no other pattern is given.
    """
    if is_remote(pattern):
        if "**" in pattern:
            raise UserError(f"`**` is for local folders, not for addresses. Received: {pattern}")
        found = files = find_matches(pattern)
    else:
        # A file may be called "a[1].txt".
        found = [pattern] if os.path.isfile(pattern) else sorted(glob(pattern, recursive=True))
        files = [path for path in found if os.path.isfile(path)]
    if not files:
        note = "" if is_one else " Commas separate names; write ? for a comma in a name."
        raise UserError(_explain_no_file(pattern, found) + note)
    return files


def describe_overlap(split: str, files: Sequence[TextFile], train: Sequence[TextFile]) -> str:
    """Returns a warning about files of a split that are also training files, or an empty string."""
    trained = {_identify(file) for file in train}
    shared = [str(file) for file in files if _identify(file) in trained]
    if not shared:
        return ""
    return (
        f"warning: {split} contains training text, so its losses will be too low: "
        f"{_list_some(shared)} in both"
    )


def _identify(file: TextFile) -> tuple[str, str | None]:
    path = str(file.path)
    return path if is_remote(path) else os.path.realpath(path), file.member


def _list_some(names: Collection[str]) -> str:
    """Returns the first five names, and the number of the others."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(itertools.islice(names, 5)) + more


def _explain_no_file(pattern: str, found: Sequence[str]) -> str:
    """Returns why a pattern matches no file, given the paths that it does match."""
    if len(found) != 1 or not os.path.exists(found[0]):
        note = " In a pattern, [ begins a set of characters; write [[] for [."
        return f"no file matches {pattern!r}.{note if '[' in pattern else ''}"
    if os.path.isdir(found[0]):
        return f"{pattern!r} is a folder; {os.path.join(pattern, '*')!r} matches the files in it."
    return f"{pattern!r} is not a regular file."


def cut_blocks(blocks: Iterator[bytes], level: str, *, name: str = "the text") -> Iterator[bytes]:
    """Joins and cuts blocks so that each one ends where a text of this level may be cut."""
    rest = b""
    for block in blocks:
        # Only the new block is searched, because the rest contains no place to cut.
        place = find_cut(block, level)
        if place == 0:
            rest += block
            if len(rest) > _MAX_UNCUT_BYTES:
                raise UserError(
                    f"`{name}` contains more than {_MAX_UNCUT_BYTES:,} bytes without a space or a "
                    "line break; is it a text of words?"
                )
            continue
        yield rest + block[:place]
        rest = block[place:]
    if rest:
        yield rest


def find_cut(text: bytes, level: str) -> int:
    r"""Returns the last byte offset at which a text may be cut; 0 if there is none.

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
    # Before a last character that may continue in the next block: all bytes of a character but the
    # first have 10 as their highest bits.
    for back in range(1, min(4, len(text)) + 1):
        if text[-back] & 0xC0 != 0x80:
            return len(text) - back + (text[-back] < 0x80)
    # No byte here begins a character: they continue one of the previous block, or are not UTF-8.
    return len(text) if len(text) >= 4 else 0


def _list_texts(name: str) -> list[TextFile]:
    path = name if is_remote(name) else Path(name)
    if os.path.splitext(name)[1].lower() != ".zip":
        file = TextFile(path)
        if not is_remote(name):  # where opening each of many files takes time
            file.check()
        return [file]
    with explain_damage(name), open_file(name) as stored, zipfile.ZipFile(stored) as archive:
        members = sorted({name for name in archive.namelist() if not name.endswith("/")})
    if not members:
        raise UserError(f"`{path}` contains no file.")
    return [TextFile(path, member) for member in members]
