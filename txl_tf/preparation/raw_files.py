"""The raw files of a data set: finding, downloading and cutting them."""

import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from txl_tf.data.download import fetch, unpack
from txl_tf.data.text.text_files import TextFile, describe_overlap, find_files
from txl_tf.data.text.vocabulary import CHARACTER_LEVELS
from txl_tf.errors import UserError
from txl_tf.preparation.corpora import CORPORA, SPLITS, CorpusSpec
from txl_tf.preparation.options import TEXT, PrepareOptions

Splits = Mapping[str, tuple[TextFile, ...]]
_MAX_SPACE = 2**16  # bytes of white space at an end of a split of text8
_CUT_BYTES = 2**16  # in which a line must end so that characters are cut there


@dataclass(frozen=True)
class RawFiles:
    """The files from which a data set is made; a corpus that needs no files has no splits."""

    splits: Splits
    vocabulary: Path | None = None  # `None` if it is to be learned
    is_release: bool = False  # whether the 2019 release wrote the files of the splits

    def describe(self) -> dict[str, list[list[str | int]]]:
        """Returns the name and size of each file, in the form stored in `records.json`."""
        described: dict[str, list[list[str | int]]] = {
            split: [[Path(str(file)).name, file.stored_size] for file in files]
            for split, files in self.splits.items()
        }
        if self.vocabulary is not None:
            described["vocabulary"] = [[self.vocabulary.name, self.vocabulary.stat().st_size]]
        return described


def ensure_raw_files(options: PrepareOptions) -> RawFiles:
    """Returns the raw files of a data set, and downloads those of a public one if necessary."""
    found = find_raw_files(options)
    if found is None:
        _download(options)
        found = find_raw_files(options)
    if found is None:
        raise UserError(f"`{options.raw_dir}` does not hold the files of {options.dataset}.")
    return found


def find_raw_files(options: PrepareOptions) -> RawFiles | None:
    """Finds the raw files; `None` if those of a public data set are not in `options.raw_dir`."""
    if options.dataset == TEXT:
        patterns = {split: getattr(options, split) for split in SPLITS}
        splits = {split: find_files(given) for split, given in patterns.items() if given}
        for split in [name for name in splits if name != "train"]:
            if warning := describe_overlap(split, splits[split], splits["train"]):
                print(warning, file=sys.stderr)
        if options.valid_fraction is not None:
            splits |= hold_out(splits["train"], options.valid_fraction, options.level)
        return RawFiles(splits, options.vocab_file)
    corpus = CORPORA[options.dataset]
    if not (corpus.layouts or corpus.raw):
        return RawFiles({}, options.vocab_file)
    vocabulary = options.raw_dir / corpus.vocabulary_file if corpus.vocabulary_file else None
    if vocabulary is not None and not vocabulary.is_file():
        return None
    layout = find_layout(corpus, options.raw_dir)
    sizes = (options.valid_size, options.test_size)
    # Files cut into splits take precedence over the raw file, unless the user gives sizes.
    if layout and (not corpus.raw or sizes == (None, None)):
        return RawFiles(layout, vocabulary, is_release=True)
    raw = [file for pattern in corpus.raw for file in find_raw(options.raw_dir, pattern)]
    if raw:
        valid_size, test_size = (
            held_out if size is None else size
            for size, held_out in zip(sizes, corpus.held_out, strict=True)
        )
        cut = cut_raw(corpus, raw[0], valid_size=valid_size, test_size=test_size)
        return RawFiles({split: (file,) for split, file in cut.items()})
    if layout:
        raise UserError(
            f"--valid_size and --test_size are for the raw file `{corpus.raw[0]}`, which is not "
            f"in `{options.raw_dir}`; train.txt, valid.txt and test.txt are already separate."
        )
    return None


def hold_out(
    files: tuple[TextFile, ...], fraction: float, level: str
) -> dict[str, tuple[TextFile, ...]]:
    """Cuts a fraction of the bytes from the end of files, at the end of a line: train and valid.

    At levels "byte" and "char", a text whose next line end is far or is its own end is cut before a
    character.
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
            cut = _find_cut(file, cut, level, end=0 if after else size)
        train += [replace(file, stop=cut)] * (cut > 0)
        valid += [replace(file, start=cut, stop=size)] * (cut < size)
    if not train or not valid:
        raise UserError(
            "`valid_fraction` must leave text to both splits; words and subwords are cut at ends "
            f"of lines alone. Received: valid_fraction={fraction}"
        )
    return {"train": tuple(train), "valid": tuple(valid)}


def _find_cut(file: TextFile, place: int, level: str, *, end: int) -> int:
    """Returns the offset from `place` on to cut a file at; not `end`, if that is possible."""
    rest = replace(file, start=place - 1)
    if level not in CHARACTER_LEVELS:
        return place + _count_until_line_end(rest.iterate_blocks(_CUT_BYTES)) - 1
    head = _read(replace(rest, stop=place - 1 + _CUT_BYTES))
    cut = place + head.find(b"\n")
    if cut < place or cut == end:
        # All bytes of a character but the first have 10 as their highest bits.
        following = head[1:4]
        cut = place + len(following) - len(following.lstrip(bytes(range(0x80, 0xC0))))
    return cut


def _count_until_line_end(blocks: Iterable[bytes]) -> int:
    """Returns the number of bytes up to the end of the first line, or of the text."""
    count = 0
    for block in blocks:
        line, line_end, _ = block.partition(b"\n")
        count += len(line) + len(line_end)
        if line_end:
            break
    return count


def _download(options: PrepareOptions) -> None:
    """Downloads and unpacks the files of a public data set."""
    raw_dir = options.raw_dir
    if (raw_dir / "cache.pkl").is_file():
        raise UserError(
            f"`{raw_dir}` holds a corpus of the 2019 release, cache.pkl, and no texts. Convert its "
            "splits to records with: txl import_release "
            f"--source {shlex.quote(str(raw_dir.parent))} --out MODEL_DIR"
        )
    for published in CORPORA[options.dataset].published:
        path = fetch(published, raw_dir)
        if path.suffix in (".gz", ".tgz"):
            unpack(path, raw_dir)


def find_layout(corpus: CorpusSpec, raw_dir: Path) -> Splits | None:
    """Returns the files of each split in the first complete layout; `None` if there is none."""
    for layout in corpus.layouts:
        found = {split: find_raw(raw_dir, layout[split]) for split in SPLITS}
        if all(found.values()):
            return found
    return None


def find_raw(raw_dir: Path, pattern: str) -> tuple[TextFile, ...]:
    """Returns the files in a folder that match a pattern, which may be ARCHIVE.zip!MEMBER."""
    archive, _, member = pattern.partition("!")
    paths = sorted(path for path in raw_dir.glob(archive) if path.is_file())
    if not member:
        return tuple(TextFile(path) for path in paths)
    return tuple(
        file for path in paths for file in find_files([str(path)]) if file.member == member
    )


def cut_raw(
    corpus: CorpusSpec, file: TextFile, *, valid_size: int, test_size: int
) -> dict[str, TextFile]:
    """Cuts the one raw file of a data set into splits: test at the end, valid before it.

    Sizes are in bytes; a split of none is left out.
    """
    size = file.size
    if size is None:
        raise UserError(f"`{file}` must be unpacked first: it is cut into splits")
    ends = (size - valid_size - test_size, size - test_size, size)
    if ends[0] <= 0:
        raise UserError(
            "`valid_size` + `test_size` must be below the size of the raw file. "
            f"Received: valid_size={valid_size}, test_size={test_size}, `{file}` of {size} bytes"
        )
    splits = {
        split: replace(file, start=start, stop=stop)
        for split, start, stop in zip(SPLITS, (0, *ends[:-1]), ends, strict=True)
        if start < stop
    }
    if not corpus.is_stripped:
        return splits
    return {split: _strip(part) for split, part in splits.items()}


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
