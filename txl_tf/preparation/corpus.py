"""The definition of a data set: its texts, its symbols, and how it is cut into splits.

A corpus knows its files: `Corpus.locate` finds each of them once, as sources of the splits.
"""

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from txl_tf.data.download import PublishedFile, fetch, unpack
from txl_tf.data.text.learning import LearningOptions
from txl_tf.data.text.text_files import (
    EncodingErrors,
    TextFile,
    TextSource,
    describe_overlap,
    find_files,
)
from txl_tf.data.text.vocabulary import (
    CHARACTER_LEVELS,
    EVERY_BYTE,
    Level,
    Vocabulary,
    read_vocabulary_file,
)
from txl_tf.errors import UserError

SPLITS = ("train", "valid", "test")
Splits = Mapping[str, tuple[TextFile, ...]]
_MAX_SPACE = 2**16  # bytes of white space at an end of a split of text8
_CUT_BYTES = 2**16  # characters are cut at the end of a line if one lies within these


@dataclass(frozen=True)
class Texts:
    """The texts of a data set that `Corpus.locate` found."""

    sources: Mapping[str, TextSource]  # of each split
    vocabulary_file: Path | str | None = None  # text: an address

    def describe(self) -> dict[str, list[list[str | int]]]:
        """Returns the name and size of each file, in the form stored in `records.json`."""
        described: dict[str, list[list[str | int]]] = {
            split: [[Path(str(file)).name, file.stored_size] for file in source.files]
            for split, source in self.sources.items()
            if source.files
        }
        if self.vocabulary_file is not None:
            size = TextFile(self.vocabulary_file).stored_size
            described["vocabulary"] = [[Path(self.vocabulary_file).name, size]]
        return described


@dataclass(frozen=True)
class Corpus:
    """The settings that all data sets have; subclasses locate the texts.

    In the 2019 code: the branches of `Corpus` for each data set.
    """

    name: str  # the value of `--dataset`
    level: Level  # of the vocabulary
    learning: LearningOptions = field(default_factory=LearningOptions)
    # The splits whose symbols are counted to order the ids; if empty, the symbols are all bytes.
    counted: tuple[str, ...] = SPLITS
    vocabulary_file: Path | str | None = None  # instead of a learned vocabulary
    documents: tuple[str, ...] = ("none",)  # the arguments of `DocumentFinder`
    cutoffs: tuple[int, ...] = ()  # the first ids of the second and later bins
    encoding_errors: EncodingErrors = "strict"
    # The published numbers of tokens per split, of symbols ("vocabulary") and of "training files",
    # where known.
    counts: Mapping[str, int] = field(default_factory=dict)
    num_shuffles: int = 0  # how often the documents of each training file are written, shuffled
    seed: int = 0  # of the shuffles

    def locate(self, raw_dir: Path) -> Texts | None:
        """Finds the texts, for a public set in `raw_dir`; returns `None` if some are missing."""
        raise NotImplementedError

    def download(self, raw_dir: Path) -> None:
        """Downloads the texts, if they are published."""

    def read_vocabulary(self, texts: Texts) -> Vocabulary | None:
        """Returns the given vocabulary; `None` if it must be learned."""
        if texts.vocabulary_file is None:
            return None if self.counted else Vocabulary("byte", EVERY_BYTE)
        vocabulary = read_vocabulary_file(texts.vocabulary_file, self.level, self.learning)
        if self.learning.lower_case:
            # Symbols such as <S> may have capitals, because they are used by their ids.
            markers = (vocabulary.unknown, vocabulary.line_start, vocabulary.line_end)
            words = (word for word in vocabulary.symbols if word.isalpha() and word not in markers)
            wrong = [word for word in words if word != word.lower()]
            if wrong:
                more = " and other words" * (len(wrong) > 3)
                raise UserError(
                    f"with --lower_case, no text contains {', '.join(map(repr, wrong[:3]))}{more} "
                    "with capitals: remove them from --vocab_file"
                )
        return vocabulary

    def compare_count(self, name: str, found: int) -> str:
        """Returns how a count differs from the published one, or an empty string if it does not."""
        published = self.counts.get(name, found)
        if found == published:
            return ""
        return f"{self.name}, {name}: {found:,}; the published set has {published:,}."


@dataclass(frozen=True)
class OwnTexts(Corpus):
    """Texts of the user."""

    patterns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of each split
    valid_fraction: float | None = None  # of the training text that becomes valid

    def locate(self, raw_dir: Path) -> Texts:
        """Finds the files that the patterns match."""
        splits = {split: find_files(patterns) for split, patterns in self.patterns.items()}
        for split in [name for name in splits if name != "train"]:
            if warning := describe_overlap(split, splits[split], splits["train"]):
                print(warning, file=sys.stderr)
        if self.valid_fraction is not None:
            splits |= hold_out(splits["train"], self.valid_fraction, self.level)
        sources = {
            split: TextSource(files, self.level, self.encoding_errors)
            for split, files in splits.items()
        }
        return Texts(sources, self.vocabulary_file)


@dataclass(frozen=True)
class PublicSet(Corpus):
    """A published data set."""

    # What to download if `raw_dir` does not hold the files.
    published: tuple[PublishedFile, ...] = ()
    # The possible layouts of the splits' files in `raw_dir`; the first complete one is used. Each
    # split has a pattern, or ARCHIVE.zip!MEMBER.
    layouts: tuple[Mapping[str, str], ...] = ()
    raw: tuple[str, ...] = ()  # the possible places of one file that is cut into splits
    held_out: tuple[int, int] = (5_000_000, 5_000_000)  # its last bytes: valid, then test
    sizes: tuple[int | None, int | None] = (None, None)  # the user's, instead of `held_out`
    is_stripped: bool = False  # whether its splits lose the white space at their ends
    # The first parses files of `layouts` in a format of the 2019 release, the second all texts.
    parse_release: Callable[[bytes], bytes] | None = None
    parse: Callable[[bytes], bytes] | None = None

    def locate(self, raw_dir: Path) -> Texts | None:
        """Finds the files in `raw_dir`."""
        vocabulary_file = raw_dir / self.vocabulary_file if self.vocabulary_file else None
        if vocabulary_file and not vocabulary_file.is_file():
            return None
        splits = self._find_layout(raw_dir)
        steps = [self.parse_release, self.parse]
        # Files cut into splits take precedence over the raw file, unless the user gives sizes.
        if splits is None or (self.raw and self.sizes != (None, None)):
            raw = [file for pattern in self.raw for file in find_raw(raw_dir, pattern)]
            if splits and not raw:
                raise UserError(
                    f"--valid_size and --test_size are for the raw file `{self.raw[0]}`, which is "
                    f"not in `{raw_dir}`; train.txt, valid.txt and test.txt are already separate."
                )
            if not raw:
                return None
            splits, steps = self._cut(raw[0]), [self.parse]
        parse = tuple(step for step in steps if step)
        sources = {
            split: TextSource(files, self.level, self.encoding_errors, parse)
            for split, files in splits.items()
        }
        return Texts(sources, vocabulary_file)

    def download(self, raw_dir: Path) -> None:
        """Downloads and unpacks the files that `raw_dir` does not hold."""
        if (raw_dir / "cache.pkl").is_file():
            raise UserError(
                f"`{raw_dir}` holds a corpus of the 2019 release, cache.pkl, and no texts. Convert "
                "its splits to records with: txl import_release "
                f"--source {shlex.quote(os.path.normpath(raw_dir / '..'))} --out MODEL_DIR"
            )
        for published in self.published:
            path = fetch(published, raw_dir)
            if path.name.endswith((".tar.gz", ".tgz")):
                unpack(path, raw_dir)

    def _find_layout(self, raw_dir: Path) -> Splits | None:
        """Returns the files of the first complete layout; `None` if there is none."""
        for layout in self.layouts:
            found = {split: find_raw(raw_dir, layout[split]) for split in SPLITS}
            if all(found.values()):
                return found
        return None

    def _cut(self, file: TextFile) -> Splits:
        """Cuts the raw file into splits, test at the end and valid before it; omits empty ones."""
        size = file.size
        if size is None:
            raise UserError(f"`{file}` must be unpacked first: it is cut into splits")
        valid_size, test_size = (
            default if given is None else given
            for given, default in zip(self.sizes, self.held_out, strict=True)
        )
        ends = (size - valid_size - test_size, size - test_size, size)
        if ends[0] <= 0:
            raise UserError(
                "`valid_size` + `test_size` must be below the size of the raw file. Received: "
                f"valid_size={valid_size}, test_size={test_size}, `{file}` of {size} bytes"
            )
        parts = {
            split: replace(file, start=start, stop=stop)
            for split, start, stop in zip(SPLITS, (0, *ends[:-1]), ends, strict=True)
            if start < stop
        }
        return {
            split: (_strip(part) if self.is_stripped else part,) for split, part in parts.items()
        }


def find_raw(raw_dir: Path, pattern: str) -> tuple[TextFile, ...]:
    """Returns the files in a folder that match a pattern, which may be ARCHIVE.zip!MEMBER."""
    archive, _, member = pattern.partition("!")
    paths = sorted(path for path in raw_dir.glob(archive) if path.is_file())
    if not member:
        return tuple(TextFile(path) for path in paths)
    return tuple(
        file for path in paths for file in find_files([str(path)]) if file.member == member
    )


def hold_out(
    files: tuple[TextFile, ...], fraction: float, level: str
) -> dict[str, tuple[TextFile, ...]]:
    """Cuts files into train and valid, which gets a fraction of the bytes at their end.

    The cut is at the end of a line or, at levels "byte" and "char", before a character if the next
    line end is far away or is the end of the text.
    """
    sizes = [file.size for file in files]
    if None in sizes:
        raise UserError(
            f"`valid_fraction` needs unpacked files. Received: {files[sizes.index(None)]}"
        )
    after = sum(size or 0 for size in sizes)  # bytes of the files to come
    left = round((1 - fraction) * after)  # bytes for train
    train, valid = [], []
    for file, size in zip(files, sizes, strict=True):
        assert size is not None
        after -= size
        cut = min(left, size)
        left -= cut
        if 0 < cut < size:
            cut = _find_cut(file, cut, size, level, is_last=not after)
        train += [replace(file, stop=cut)] * (cut > 0)
        valid += [replace(file, start=cut, stop=size)] * (cut < size)
    if not train or not valid:
        raise UserError(
            "`valid_fraction` must leave text to both splits; words and subwords are cut at ends "
            f"of lines alone. Received: valid_fraction={fraction}"
        )
    return {"train": tuple(train), "valid": tuple(valid)}


def _find_cut(file: TextFile, place: int, size: int, level: str, *, is_last: bool) -> int:
    """Returns the offset, at or after `place`, at which to cut a file of `size` bytes.

    If possible, the last file is not cut at its end.
    """
    if level not in CHARACTER_LEVELS:
        return file.find_line(place) or size
    cut = file.find_line(place, _CUT_BYTES)
    if cut is None or (is_last and cut == size):
        # All bytes of a character but the first have 10 as their highest bits.
        following = _read(replace(file, start=place, stop=place + 3))
        return place + len(following) - len(following.lstrip(bytes(range(0x80, 0xC0))))
    return cut


def _strip(file: TextFile) -> TextFile:
    """Returns a byte range without the white space at its ends, up to 64 KiB at each."""
    start, stop = file.start, file.stop
    assert stop is not None
    head = _read(replace(file, stop=min(stop, start + _MAX_SPACE)))
    start += len(head) - len(head.lstrip())
    tail = _read(replace(file, start=max(start, stop - _MAX_SPACE)))
    return replace(file, start=start, stop=stop - (len(tail) - len(tail.rstrip())))


def _read(file: TextFile) -> bytes:
    return b"".join(file.iterate_blocks())
