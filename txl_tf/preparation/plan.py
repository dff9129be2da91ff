"""The plan of a data set: its texts, its vocabulary if that is given, and its properties."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from txl_tf.data.text.learning import LearningOptions
from txl_tf.data.text.text_files import Chunk, EncodingErrors, TextFile, TextSource
from txl_tf.data.text.vocabulary import EVERY_BYTE, Vocabulary, read_vocabulary_file
from txl_tf.errors import UserError
from txl_tf.preparation.corpora import CORPORA, CorpusSpec
from txl_tf.preparation.options import TEXT, PrepareOptions
from txl_tf.preparation.raw_files import RawFiles
from txl_tf.preparation.standard_library import read_standard_library

_NOT_TEXT8 = re.compile(rb"[\x80-\xff]+|[^a-z ]")


@dataclass(frozen=True)
class DocumentSource:
    """Documents in memory, read like the files of a `TextSource`."""

    documents: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """The size of the text in bytes."""
        return sum(map(len, self.documents))

    def iterate_chunks(self) -> Iterator[Chunk]:
        """Yields the documents."""
        return (Chunk(document, True, True) for document in self.documents)


Source = TextSource | DocumentSource


@dataclass(frozen=True)
class Plan:
    """A data set to make."""

    corpus: CorpusSpec
    sources: Mapping[str, Source]  # the text of each split
    files: Mapping[str, list[list[str | int]]]  # name and size of the files of each split
    vocabulary: Vocabulary | None = None  # `None` if it is to be learned


def make_plan(options: PrepareOptions, files: RawFiles) -> Plan:
    """Plans a data set."""
    corpus = choose_corpus(options)
    sources: dict[str, Source]
    if corpus.name == "pydoc":
        documents = read_standard_library()
        sources = {split: DocumentSource(tuple(texts)) for split, texts in documents.items()}
    else:
        sources = {
            split: make_source(
                corpus,
                found,
                is_release=files.is_release,
                drop_newlines=options.drop_newlines,
                encoding_errors=options.encoding_errors,
            )
            for split, found in files.splits.items()
        }
    vocabulary = Vocabulary("byte", EVERY_BYTE) if corpus.every_byte else None
    if files.vocabulary is not None:
        vocabulary = read_vocabulary_file(
            files.vocabulary, corpus.level, corpus.learning, corpus.unknown
        )
        if corpus.learning.lower_case:
            _check_lower_case(vocabulary)
    return Plan(corpus, sources, files.describe(), vocabulary)


def _check_lower_case(vocabulary: Vocabulary) -> None:
    # Symbols such as <S> may have capitals, because they are used by their ids.
    markers = (vocabulary.unknown, vocabulary.line_start, vocabulary.line_end)
    words = (word for word in vocabulary.symbols if word.isalpha() and word not in markers)
    wrong = [word for word in words if word != word.lower()]
    if wrong:
        raise UserError(
            f"with --lower_case, no text contains {', '.join(map(repr, wrong[:3]))}"
            f"{' and other words' * (len(wrong) > 3)} with capitals: remove them from --vocab_file"
        )


def choose_corpus(options: PrepareOptions) -> CorpusSpec:
    """Returns the properties of a data set, including changes by the options."""
    if options.dataset != TEXT:
        corpus = CORPORA[options.dataset]
        if options.drop_newlines:
            # Without line breaks there are no lines that could separate documents.
            return replace(corpus, symbols=corpus.symbols - 1, documents="none", separator=None)
        return corpus
    learning = LearningOptions(
        special=options.special or (),
        min_count=options.min_count,
        max_symbols=options.max_symbols,
        unknown=options.unknown,
        lower_case=options.lower_case,
        line_end=(options.line_end or None) if options.level == "word" else None,
    )
    return CorpusSpec(
        TEXT,
        options.level,
        counted=("train",),
        learning=learning,
        every_byte=options.level == "byte",
        unknown=options.unknown,
        documents=options.documents if options.document_separator is None else "separator",
        separator=options.document_separator,
        cutoffs=options.cutoffs or (),
    )


def make_source(
    corpus: CorpusSpec,
    files: tuple[TextFile, ...],
    *,
    is_release: bool,
    drop_newlines: bool = False,
    encoding_errors: EncodingErrors = "strict",
) -> TextSource:
    """Returns the text of a split; with `is_release`, its files are in the release's format."""
    steps: list[Callable[[bytes], bytes]] = []
    if is_release and corpus.parse_release:
        steps.append(corpus.parse_release)
    if corpus.name == "text8":
        steps.append(_check_text8)
    if drop_newlines:
        steps.append(lambda text: text.replace(b"\n", b""))

    def parse(text: bytes) -> bytes:
        for step in steps:
            text = step(text)
        return text

    return TextSource(files, corpus.level, encoding_errors, parse if steps else None)


def _check_text8(text: bytes) -> bytes:
    other = _NOT_TEXT8.search(text)
    if other:
        raise UserError(
            "text8 has 27 symbols, the letters a to z and the space. This file has others, such as "
            f"{other[0].decode('utf-8', 'backslashreplace')!r}; --dataset text takes any text"
        )
    return text
