"""What a data set is made of, before anything is read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from absl import flags
from corpora import CORPORA, SPLITS, Corpus
from raw_files import CorpusError, Files, cut_raw, find_layout, find_raw, make_source
from standard_library import read_standard_library

from txl_tf.cli.config_flags import parse_cutoffs
from txl_tf.data.encoding import Source
from txl_tf.data.learning import LearningOptions
from txl_tf.data.text_files import Chunk, TextFile, TextSource, find_files
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.data.vocabulary_file import read_vocabulary_file

# Words that stand for unknown ones by common use.
_UNKNOWN = ("<unk>", "<UNK>")


@dataclass(frozen=True)
class Plan:
    """A data set to make.

    Args:
        corpus: Its symbols, documents and cutoffs.
        sources: The text of each split.
        files: The name and size of each file that is read, by split.
        vocabulary: Its vocabulary, if that is not learnt.
        num_shuffles: How many orders of the documents to write, if `corpus.shuffled`.
        seed: Of these orders.
    """

    corpus: Corpus
    sources: Mapping[str, Source]
    files: Mapping[str, list[tuple[str, int]]]
    vocabulary: Vocabulary | None = None
    num_shuffles: int = 1
    seed: int = 0


@dataclass(frozen=True)
class DocumentSource:
    """Documents in memory, each a file of its own.

    Args:
        documents: The text of each.
    """

    documents: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """The bytes of the text."""
        return sum(map(len, self.documents))

    def iterate_chunks(self) -> Iterator[Chunk]:
        """Yields the documents."""
        return (Chunk(document, True, True) for document in self.documents)


def plan_pydoc() -> Plan:
    """Plans the `pydoc` corpus, which needs no files."""
    sources = {
        split: DocumentSource(tuple(documents))
        for split, documents in read_standard_library().items()
    }
    return Plan(CORPORA["pydoc"], sources, files={})


def plan_corpus(options: flags.FlagValues, raw_dir: Path) -> Plan | None:
    """Plans a public data set.

    Args:
        options: The flags.
        raw_dir: The folder of the raw files.

    Returns:
        The plan; `None` if the raw files are not there.

    Raises:
        CorpusError: If flags are for a raw file that is not there, or a file is too small.
    """
    corpus = CORPORA[options.dataset]
    if options.drop_newlines:
        # No lines are left then, and so no separators of documents.
        corpus = replace(corpus, symbols=corpus.symbols - 1, documents="none", separator=None)
    files, is_release = _choose_files(corpus, options, raw_dir)
    if files is None:
        return None
    sources = {
        split: make_source(
            corpus,
            files[split],
            is_release=is_release,
            drop_newlines=options.drop_newlines,
            encoding_errors=options.encoding_errors,
        )
        for split in SPLITS
    }
    listed = {split: _list_files(files[split]) for split in SPLITS}
    vocabulary = None
    if corpus.vocabulary_file:
        path = raw_dir / corpus.vocabulary_file
        if not path.is_file():
            return None
        listed["vocabulary"] = [(path.name, path.stat().st_size)]
        vocabulary = read_vocabulary_file(path, corpus.level, corpus.learning, corpus.unknown)
    return Plan(corpus, sources, listed, vocabulary, options.num_shuffles, options.seed)


def plan_text(options: flags.FlagValues) -> Plan:
    """Plans a data set from the user's own files.

    Raises:
        UserError: If a pattern names no file, or the vocabulary's file is wrong.
    """
    files = {split: find_files(patterns) for split in SPLITS if (patterns := options[split].value)}
    level = options.level
    is_word = level == "word"
    learning = LearningOptions(
        special=tuple(options.special or ()),
        min_count=options.min_count,
        max_symbols=options.max_symbols,
        every_byte=level == "byte",
        unknown=options.unknown,
        lower_case=options.lower_case,
        line_end=(options.line_end or None) if is_word else None,
    )
    rule = "separator" if options.document_separator is not None else options.documents
    corpus = Corpus(
        "text",
        level,
        counted=("train",),
        learning=learning,
        unknown=options.unknown,
        documents=rule,
        separator=options.document_separator,
        cutoffs=parse_cutoffs(options.cutoffs or []),
    )
    sources = {
        split: TextSource(found, level, options.encoding_errors) for split, found in files.items()
    }
    listed = {split: _list_files(found) for split, found in files.items()}
    vocabulary = None
    if options.vocab_file:
        path = Path(options.vocab_file)
        vocabulary = read_vocabulary_file(path, level, learning, options.unknown)
        listed["vocabulary"] = [(path.name, path.stat().st_size)]
    return Plan(corpus, sources, listed, vocabulary)


def choose_unknown(vocabulary: Vocabulary, unknown: str | None) -> Vocabulary:
    """Lets a vocabulary that holds a symbol for unknown ones use it."""
    if vocabulary.unknown is not None or vocabulary.level != "word":
        return vocabulary
    for symbol in (unknown, *_UNKNOWN):
        if symbol in vocabulary.symbols:
            return replace(vocabulary, unknown=symbol)
    return vocabulary


def _choose_files(
    corpus: Corpus, options: flags.FlagValues, raw_dir: Path
) -> tuple[Files | None, bool]:
    """Returns the files of the splits, and whether the 2019 release wrote them.

    Where both are there, the files of the release are taken, unless flags tell how to cut the raw
    one.
    """
    sizes = (options.valid_size, options.test_size)
    layout = find_layout(corpus, raw_dir)
    raw = [file for pattern in corpus.raw for file in find_raw(raw_dir, pattern)]
    if not corpus.raw or (layout and sizes == (None, None)):
        return layout, layout is not None
    if raw:
        valid_size, test_size = (size or corpus.held_out for size in sizes)
        cut = cut_raw(corpus, raw[0], valid_size=valid_size, test_size=test_size)
        return {split: (file,) for split, file in cut.items()}, False
    if layout:
        raise CorpusError(
            f"--valid_size and --test_size are for the raw file `{corpus.raw[0]}`, which is not "
            f"in `{raw_dir}`; the splits in train.txt, valid.txt and test.txt are cut already."
        )
    return None, False


def _list_files(files: tuple[TextFile, ...]) -> list[tuple[str, int]]:
    return [(Path(str(file)).name, file.path.stat().st_size) for file in files]
