"""The data sets: what they are called, where they come from and how they are cut."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from standard_library import read_standard_library

from txl_tf.data.vocabulary import Level, Vocabulary
from txl_tf.errors import UserError


class CorpusError(UserError):
    """A raw file that is missing, damaged or too small."""


@dataclass(frozen=True)
class RawFile:
    """The published file of a data set.

    Args:
        name: Its name; in an archive, the archive is called NAME.zip.
        url: Where to get the archive.
        size: Its bytes when complete.
    """

    name: str
    url: str
    size: int


@dataclass(frozen=True)
class Corpus:
    """A data set.

    Args:
        name: What `--dataset` calls it.
        level: What its symbols are.
        raw: Its published file; `None` if it needs none.
        held_out: Default of the bytes or characters that go to valid, and again to test.
    """

    name: str
    level: Level
    raw: RawFile | None = None
    held_out: int = 0


@dataclass(frozen=True)
class Prepared:
    """What a data set is made of, before it is encoded.

    Args:
        vocabulary: Its symbols.
        splits: The text of "train", "valid" and "test".
        note: A line for the user, or `None`.
    """

    vocabulary: Vocabulary
    splits: Mapping[str, str] | Mapping[str, bytes]
    note: str | None = None


CORPORA = {
    corpus.name: corpus
    for corpus in (
        Corpus("pydoc", "byte"),
        Corpus(
            "text8",
            "char",
            RawFile("text8", "http://mattmahoney.net/dc/text8.zip", 100_000_000),
            held_out=5_000_000,
        ),
        Corpus(
            "enwik8",
            "byte",
            RawFile("enwik8", "http://mattmahoney.net/dc/enwik8.zip", 100_000_000),
            held_out=5_000_000,
        ),
    )
}


def prepare_pydoc() -> Prepared:
    """Reads the `pydoc` corpus; its vocabulary has every byte, so that it fits every text."""
    splits = read_standard_library()
    level = CORPORA["pydoc"].level
    return Prepared(Vocabulary.learn(level, [splits["train"]], every_byte=True), splits)


def prepare_text8(raw_dir: Path, *, valid_size: int, test_size: int) -> Prepared:
    """Cuts text8 as the 2019 release did.

    Args:
        raw_dir: The folder of the raw file.
        valid_size: Characters before those of the test split.
        test_size: Characters at the end.

    Returns:
        The data set; its splits are stripped of the spaces around them.

    Raises:
        CorpusError: If the raw file is missing, damaged or too small.
    """
    corpus = CORPORA["text8"]
    raw = read_raw(corpus, raw_dir)
    try:
        text = raw.decode("ascii")
    except UnicodeDecodeError as error:
        raise CorpusError(f"`{raw_dir / 'text8'}` is not text8: {error}") from error
    train, valid, test = cut_sizes(len(text), valid_size, test_size)
    splits = {
        "train": text[train].strip(),
        "valid": text[valid].strip(),
        "test": text[test].strip(),
    }
    if "_" in text:
        raise CorpusError(
            f"`{raw_dir / 'text8'}` is not text8: it holds '_', the symbol of a space"
        )
    # The 2019 release counted all three splits for its order of ids.
    vocabulary = Vocabulary.learn(corpus.level, splits.values(), space="_")
    return Prepared(vocabulary, splits, note_size(corpus, len(raw)))


def prepare_enwik8(
    raw_dir: Path, *, valid_size: int, test_size: int, drop_newlines: bool = False
) -> Prepared:
    """Cuts enwik8; all 205 bytes that occur in it are kept.

    Args:
        raw_dir: The folder of the raw file.
        valid_size: Bytes before those of the test split.
        test_size: Bytes at the end.
        drop_newlines: Drop byte 10 after cutting. The 2019 release did, by mistake: its models
            know the other 204 bytes only.

    Returns:
        The data set.

    Raises:
        CorpusError: If the raw file is missing, damaged or too small.
    """
    corpus = CORPORA["enwik8"]
    raw = read_raw(corpus, raw_dir)
    train, valid, test = cut_sizes(len(raw), valid_size, test_size)
    splits = {"train": raw[train], "valid": raw[valid], "test": raw[test]}
    if drop_newlines:
        splits = {name: text.replace(b"\n", b"") for name, text in splits.items()}
    # The 2019 release counted all three splits for its order of ids.
    vocabulary = Vocabulary.learn(corpus.level, splits.values())
    return Prepared(vocabulary, splits, note_size(corpus, len(raw)))


def read_raw(corpus: Corpus, raw_dir: Path) -> bytes:
    """Reads the published file of a data set, or the archive it comes in.

    Args:
        corpus: A data set that has a raw file.
        raw_dir: The folder that holds NAME or NAME.zip.

    Returns:
        The content of the file.

    Raises:
        CorpusError: If both are missing, or the archive is damaged.
    """
    assert corpus.raw is not None
    path = raw_dir / corpus.raw.name
    archive = raw_dir / f"{corpus.raw.name}.zip"
    if path.is_file():
        return path.read_bytes()
    if not archive.is_file():
        raise CorpusError(
            f"`{path}` is missing, and so is `{archive}`. "
            f"Get {corpus.raw.url} and put it into `{raw_dir}`."
        )
    try:
        with zipfile.ZipFile(archive) as opened:
            return opened.read(corpus.raw.name)
    except (zipfile.BadZipFile, KeyError) as error:
        raise CorpusError(
            f"`{archive}` is damaged: {error}. Get {corpus.raw.url} again."
        ) from error


def cut_sizes(size: int, valid_size: int, test_size: int) -> tuple[slice, slice, slice]:
    """Returns where train, valid and test lie: the test split last, the valid split before it.

    >>> cut_sizes(100, 20, 5)
    (slice(0, 75, None), slice(75, 95, None), slice(95, 100, None))

    Args:
        size: Bytes or characters in all.
        valid_size: Those of the valid split.
        test_size: Those of the test split.

    Raises:
        CorpusError: If nothing would be left for training.
    """
    train_size = size - valid_size - test_size
    if train_size <= 0:
        raise CorpusError(
            f"`valid_size` + `test_size` must be below the size of the raw file. "
            f"Received: valid_size={valid_size}, test_size={test_size}, size={size}"
        )
    valid_end = train_size + valid_size
    return slice(0, train_size), slice(train_size, valid_end), slice(valid_end, size)


def note_size(corpus: Corpus, size: int) -> str | None:
    """Returns a line on a raw file of another size than the published one, else `None`."""
    assert corpus.raw is not None
    if size == corpus.raw.size:
        return None
    return (
        f"The raw file of {corpus.name} has {size:,} bytes; "
        f"the published one has {corpus.raw.size:,}."
    )
