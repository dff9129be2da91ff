"""What a data set is made of: its texts, its vocabulary if there is one, and its facts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from txl_tf.data.learning import LearningOptions
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.data.vocabulary_file import read_vocabulary_file
from txl_tf.preparation.corpora import CORPORA, CorpusSpec
from txl_tf.preparation.encoding import Source
from txl_tf.preparation.options import TEXT, PrepareOptions
from txl_tf.preparation.raw_files import RawFiles
from txl_tf.preparation.sources import DocumentSource, make_source
from txl_tf.preparation.standard_library import read_standard_library


@dataclass(frozen=True)
class Plan:
    """A data set to make.

    Args:
        corpus: Its symbols, documents and cutoffs.
        sources: The text of each split.
        files: The name and size of each file that is read, by split.
        vocabulary: Its vocabulary, if that is not learnt.
    """

    corpus: CorpusSpec
    sources: Mapping[str, Source]
    files: Mapping[str, list[list[str | int]]]
    vocabulary: Vocabulary | None = None


def make_plan(options: PrepareOptions, files: RawFiles) -> Plan:
    """Plans a data set.

    Args:
        options: What to prepare.
        files: The raw files, all there.

    Raises:
        UserError: If the file of the vocabulary is wrong.
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
    """Returns the facts of a data set, as the options change them."""
    if options.dataset == TEXT:
        return _describe_text(options)
    corpus = CORPORA[options.dataset]
    if options.drop_newlines:
        # No lines are left then, and so no separators of documents.
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
