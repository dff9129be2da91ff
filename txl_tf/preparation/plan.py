"""The plan of a data set: its texts, its vocabulary if that is given, and its properties."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from txl_tf.data.text.learning import LearningOptions
from txl_tf.data.text.vocabulary import Vocabulary, read_vocabulary_file
from txl_tf.preparation.corpora import CORPORA, CorpusSpec
from txl_tf.preparation.options import TEXT, PrepareOptions
from txl_tf.preparation.raw_files import RawFiles
from txl_tf.preparation.sources import DocumentSource, Source, make_source
from txl_tf.preparation.standard_library import read_standard_library


@dataclass(frozen=True)
class Plan:
    """A data set to make.

    Args:
        corpus: The properties of the data set.
        sources: The text of each split.
        files: The name and size of each file that is read, by split.
        vocabulary: The vocabulary, if it is not learnt.
    """

    corpus: CorpusSpec
    sources: Mapping[str, Source]
    files: Mapping[str, list[list[str | int]]]
    vocabulary: Vocabulary | None = None


def make_plan(options: PrepareOptions, files: RawFiles) -> Plan:
    """Plans a data set.

    Raises:
        UserError: If the file of the vocabulary is damaged.
    """
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
    vocabulary = None
    if files.vocabulary is not None:
        vocabulary = read_vocabulary_file(
            files.vocabulary, corpus.level, corpus.learning, corpus.unknown
        )
    return Plan(corpus, sources, files.describe(), vocabulary)


def choose_corpus(options: PrepareOptions) -> CorpusSpec:
    """Returns the properties of a data set, including changes by the options."""
    if options.dataset == TEXT:
        return _describe_text(options)
    corpus = CORPORA[options.dataset]
    if options.drop_newlines:
        # Without line breaks there are no lines that could separate documents.
        return replace(corpus, symbols=corpus.symbols - 1, documents="none", separator=None)
    return corpus


def _describe_text(options: PrepareOptions) -> CorpusSpec:
    learning = LearningOptions(
        special=options.special or (),
        min_count=options.min_count,
        max_symbols=options.max_symbols,
        every_byte=options.level == "byte",
        unknown=options.unknown,
        lower_case=options.lower_case,
        line_end=(options.line_end or None) if options.level == "word" else None,
    )
    return CorpusSpec(
        TEXT,
        options.level,
        counted=("train",),
        learning=learning,
        unknown=options.unknown,
        documents=options.documents if options.document_separator is None else "separator",
        separator=options.document_separator,
        cutoffs=options.cutoffs or (),
    )
