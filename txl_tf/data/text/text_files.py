"""Reading text files of any size, one chunk at a time."""

import gzip
import itertools
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path
from typing import IO, Literal, NamedTuple, cast

from txl_tf.data.files import Storage, get_storage, is_remote
from txl_tf.errors import UserError, explain_errors

EncodingErrors = Literal["strict", "replace"]
CHUNK_BYTES = 2**22
# The text between two places to cut is held in memory, and a small .zip can unpack to any size.
_MAX_UNCUT_BYTES = 2**26


@dataclass(frozen=True)
class TextFile:
    """A text file, or a range of its bytes; .gz, .xz and .zip are unpacked as they are read."""

    path: Path | str  # an address only with `use_storage`
    member: str | None = None  # of a .zip
    start: int = 0  # byte offset
    stop: int | None = None  # byte offset; `None` for the end of the file
    continues: bool = False  # whether the range continues a text, at the beginning of a line

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}/{self.member}"

    @property
    def size(self) -> int | None:
        """The size of the text in bytes; `None` if it must be read to know."""
        if self.stop is not None:
            return self.stop - self.start
        if self.member is not None:
            with zipfile.ZipFile(self.find_stored()) as archive:
                return archive.getinfo(self.member).file_size - self.start
        if self._suffix in (".gz", ".xz"):
            return None
        return self.stored_size - self.start

    @property
    def stored_size(self) -> int:
        """The size of the whole file, or of its archive, in bytes."""
        if not is_remote(str(self.path)):
            return Path(self.path).stat().st_size
        size = _demand_storage(str(self.path)).get_size(str(self.path))
        if size is None:
            raise FileNotFoundError(2, "No such file or directory", str(self.path))
        return size

    @property
    def _suffix(self) -> str:
        return os.path.splitext(self.path)[1]

    def iterate_blocks(self, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        """Yields the text in blocks."""
        with _explain_damage(str(self)), self._open() as file:
            if self.start:
                file.seek(self.start)
            left = self.stop - self.start if self.stop is not None else None
            while block := file.read(size if left is None else min(size, left)):
                yield block
                left = left if left is None else left - len(block)

    def count_lines_before(self) -> int:
        """Returns the number of lines of the file before this range."""
        if not self.start:
            return 0
        before = replace(self, start=0, stop=self.start, continues=False)
        return sum(block.count(b"\n") for block in before.iterate_blocks())

    def _open(self) -> IO[bytes]:
        if self.member is not None:
            with zipfile.ZipFile(self.find_stored()) as archive:
                return archive.open(self.member)  # it stays open when the archive is closed
        if self._suffix == ".gz":
            if not self.stored_size:
                raise EOFError("it is empty")  # Python would read it as an empty text
            return cast(IO[bytes], gzip.open(self.find_stored()))
        if self._suffix == ".xz":
            return lzma.open(self.find_stored())
        stored = self.find_stored()
        return stored if not isinstance(stored, Path) else open(stored, "rb", buffering=0)

    def find_stored(self) -> Path | IO[bytes]:
        """Returns the path of the file as it is stored; opens it if it is at an address."""
        if is_remote(str(self.path)):
            return _demand_storage(str(self.path)).open(str(self.path))
        return Path(self.path)


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

    def _open(self) -> IO[bytes]:
        return open(0, "rb", buffering=0, closefd=False)


class Chunk(NamedTuple):
    """A chunk of a text file, and whether it begins the file or a line."""

    text: bytes
    begins_file: bool
    begins_line: bool


@dataclass(frozen=True)
class TextSource:
    """The text of a split, which can be read repeatedly."""

    files: tuple[TextFile, ...]  # in order
    # Decides where chunks may end: at the end of a line; in long lines before a space or, at levels
    # "byte" and "char", between any two symbols.
    level: str
    # Bytes that are not UTF-8 are an error, or are replaced by U+FFFD; level "byte" allows all.
    encoding_errors: EncodingErrors = "strict"
    # From raw bytes, in chunks that end before a space or at the end of a line, to text.
    parse: Callable[[bytes], bytes] | None = None

    @property
    def size(self) -> int | None:
        """The size of all files in bytes; `None` if they must be read to know."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def iterate_chunks(self) -> Iterator[Chunk]:
        """Yields the text, a few megabytes at a time.

        At level "word", a line break is added to a file whose last line has none.
        """
        for file in self.files:
            begins_file, begins_line = not file.continues, True
            offset = n_lines = 0
            for text in self._iterate_texts(file):
                checked = self._check(text, file, offset, n_lines)
                yield Chunk(checked, begins_file, begins_line)
                begins_file, begins_line = False, checked.endswith(b"\n")
                offset += len(text)
                n_lines += text.count(b"\n")
            if self.level == "word" and not begins_line:
                yield Chunk(b"\n", False, False)

    def _iterate_texts(self, file: TextFile) -> Iterator[bytes]:
        if self.parse is None:
            return cut_blocks(file.iterate_blocks(), self.level, name=str(file))
        return self._iterate_parsed(file, self.parse)

    def _iterate_parsed(self, file: TextFile, parse: Callable[[bytes], bytes]) -> Iterator[bytes]:
        for raw in cut_blocks(file.iterate_blocks(), "word", name=str(file)):
            with explain_errors(f"`{file}`", UserError):
                text = parse(raw)
            if text:
                yield text

    def _check(self, text: bytes, file: TextFile, offset: int, n_lines: int) -> bytes:
        if self.level == "word" and b"\0" in text:
            place = text.index(b"\0")
            lines = n_lines + text.count(b"\n", 0, place)
            self._fail(file, lines, offset + place, "a NUL byte, which no word may contain")
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
        advice = "--encoding_errors=replace continues" if "UTF-8" in what else "is it a text?"
        if self.parse is not None:  # lines and offsets are those of the parsed text
            raise UserError(f"`{file}`: {what}; {advice}.")
        lines += file.count_lines_before()
        raise UserError(
            f"`{file}`, line {lines + 1}, byte offset {file.start + offset}: {what}; {advice}."
        )


def find_files(patterns: Sequence[str]) -> tuple[TextFile, ...]:
    """Returns the files that match patterns, with `*`, `?`, `[...]` and `**` as in a shell.

    The files of each pattern and the members of a .zip are in the order of their names. A file that
    several patterns match is listed once, and a line about it is printed.
    """
    paths: dict[str, str] = {}  # paths as given, by absolute path
    repeated: dict[str, None] = {}
    for path in itertools.chain.from_iterable(map(_match_files, patterns)):
        key = path if is_remote(path) else os.path.abspath(path)
        if key in paths:
            repeated[paths[key]] = None
        paths.setdefault(key, path)
    if repeated:
        print(f"Given more than once, but read once: {_list_some(repeated)}.")
    return tuple(file for path in paths.values() for file in _list_texts(path))


def _match_files(pattern: str) -> list[str]:
    """Returns the paths or addresses of the files that match a pattern; none is an error."""
    if is_remote(pattern):
        found = files = _demand_storage(pattern).find(pattern)
    else:
        expanded = os.path.expanduser(pattern)
        # A file may be called "a[1].txt".
        found = [expanded] if os.path.isfile(expanded) else sorted(glob(expanded, recursive=True))
        files = [path for path in found if os.path.isfile(path)]
    if not files:
        raise UserError(_explain_no_file(pattern, found))
    return files


def describe_overlap(split: str, files: Sequence[TextFile], train: Sequence[TextFile]) -> str:
    """Returns a warning about the files of a split that are training files; empty if none are."""
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


def _demand_storage(address: str) -> Storage:
    storage = get_storage()
    if storage is None:
        raise UserError(f"texts must be local files. Copy {address!r} first.")
    return storage


def _explain_no_file(pattern: str, found: Sequence[str]) -> str:
    """Returns the reason why a pattern matches no file, given the paths that it does match."""
    if len(found) != 1 or not os.path.exists(found[0]):
        note = " In a pattern, [ begins a set of characters; write [[] for [."
        return f"no file matches {pattern!r}.{note if '[' in pattern else ''}"
    if os.path.isdir(found[0]):
        return f"{pattern!r} is a folder; {os.path.join(pattern, '*')!r} matches the files in it."
    return f"{pattern!r} is not a regular file."


def cut_blocks(blocks: Iterator[bytes], level: str, *, name: str = "the text") -> Iterator[bytes]:
    """Joins and cuts blocks so that each ends where a text of a level may be cut."""
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


@contextmanager
def _explain_damage(name: str) -> Iterator[None]:
    """Re-raises the errors of unpacking a file as `UserError`."""
    try:
        yield
    except RuntimeError as error:
        # A .zip with a password, or with a compression that Python does not support.
        raise UserError(f"`{name}` cannot be unpacked: {error}") from error
    except (EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # the file is missing or unreadable
        raise UserError(f"`{name}` is damaged: {error}") from error


def _list_texts(name: str) -> list[TextFile]:
    path = name if is_remote(name) else Path(name)
    if os.path.splitext(name)[1] != ".zip":
        return [TextFile(path)]
    with _explain_damage(name), zipfile.ZipFile(TextFile(path).find_stored()) as archive:
        members = sorted({name for name in archive.namelist() if not name.endswith("/")})
    if not members:
        raise UserError(f"`{path}` contains no file.")
    return [TextFile(path, member) for member in members]
