"""The options of preparation: the command line as one object."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from txl_tf.config.base import define_field, describe, document_fields
from txl_tf.data.text.documents import RULES
from txl_tf.data.text.learning import LearningOptions
from txl_tf.data.text.subwords import DEFAULT_SYMBOLS
from txl_tf.data.text.text_files import EncodingErrors
from txl_tf.data.text.vocabulary import LEVELS, Level
from txl_tf.preparation.corpora import CORPORA, drop_newlines
from txl_tf.preparation.corpus import SPLITS, Corpus, OwnTexts, PublicSet

TEXT = "text"  # a data set to make from the user's own files
RELEASE = "release2019"  # a data set that was made by the 2019 release
DATASETS = (*CORPORA, TEXT, RELEASE)
_PUBLIC = {name: corpus for name, corpus in CORPORA.items() if isinstance(corpus, PublicSet)}
_CUT = {name: corpus for name, corpus in _PUBLIC.items() if corpus.raw}

# The data sets that have these options; the other options apply to all data sets.
DATASETS_OF_OPTION: Mapping[str, tuple[str, ...]] = {
    "raw_dir": (*_PUBLIC, RELEASE),
    "num_workers": (*CORPORA, TEXT),
    **dict.fromkeys(("valid_size", "test_size"), tuple(_CUT)),
    "drop_newlines": ("enwik8",),
    **dict.fromkeys(("num_shuffles", "seed"), ("lm1b",)),
    "encoding_errors": (*_PUBLIC, TEXT),
    **dict.fromkeys((*SPLITS, "valid_fraction", "level", "documents"), (TEXT,)),
    **dict.fromkeys(("document_separator", "min_count", "max_symbols", "special"), (TEXT,)),
    **dict.fromkeys(("unknown", "lower_case", "line_end", "cutoffs"), (TEXT,)),
    "vocab_file": ("pydoc", TEXT),
}
# Options that are not compared: the records list the files by name and size instead.
_WITHOUT_EFFECT = ("raw_dir", "vocab_file", "num_workers", *SPLITS)


def _define_size(split: str) -> Any:
    index = SPLITS[1:].index(split)
    defaults = ", ".join(f"{corpus.held_out[index]:,} of {name}" for name, corpus in _CUT.items())
    text = f"Number of bytes of the raw file for {split}. [default: {defaults}]"
    return define_field(None, text, kind=int, lower_bound=1)


def _define_files(split: str) -> Any:
    text = f"Files of {split}, separated by commas; * and ** as in a shell (use quotes)."
    return define_field(None, text, kind=list, is_path=True)


@document_fields
@dataclass(frozen=True)
class PrepareOptions:
    """How to prepare a data set. `DATASETS_OF_OPTION` lists options for only some data sets."""

    dataset: str = field(metadata=describe("Data set to create.", choices=DATASETS))
    data_dir: str = field(
        metadata=describe("Folder to write. [default: data/DATASET]", is_path=True)
    )
    raw_dir: Path = field(
        metadata=describe(
            "Folder of the raw files; missing ones are downloaded. For release2019, the folder of "
            "its records. [default: raw/DATASET]",
            is_path=True,
        )
    )
    valid_size: int | None = _define_size("valid")
    test_size: int | None = _define_size("test")
    drop_newlines: bool = define_field(False, "Drop byte 10, as the 2019 release did.")
    num_shuffles: int = define_field(4, "Number of sentence orders to write.", lower_bound=1)
    seed: int = define_field(0, "Seed of the sentence orders.", lower_bound=0)
    encoding_errors: EncodingErrors = field(
        default="strict",
        metadata=describe(
            "Treatment of bytes that are not UTF-8: raise an error, or replace them by U+FFFD.",
            choices=get_args(EncodingErrors),
        ),
    )
    train: tuple[str, ...] | None = _define_files("train")
    valid: tuple[str, ...] | None = _define_files("valid")
    test: tuple[str, ...] | None = _define_files("test")
    valid_fraction: float | None = define_field(
        None,
        "Share of the text of --train, taken from its end, that becomes valid.",
        kind=float,
    )
    level: Level = field(
        default="byte",
        metadata=describe("Level at which the text is split into symbols.", choices=LEVELS),
    )
    documents: str = define_field("file", "Unit that forms a document.", choices=RULES[:-1])
    document_separator: str | None = define_field(
        None, "Line that ends a document, instead of --documents."
    )
    min_count: int = define_field(1, "Number of times that a symbol must occur.", lower_bound=1)
    max_symbols: int | None = define_field(
        None,
        f"Largest size of the vocabulary. [default: no limit; {DEFAULT_SYMBOLS} for subwords]",
        kind=int,
        lower_bound=1,
    )
    special: tuple[str, ...] | None = define_field(
        None, "Words that come first in the vocabulary.", kind=list
    )
    unknown: str | None = define_field(None, "Symbol for unknown words, such as <unk>.")
    lower_case: bool = define_field(False, "Convert the text to lower case.")
    line_end: str = define_field("<eos>", "Symbol for the end of a line; empty for none.")
    vocab_file: Path | str | None = field(
        default=None,
        metadata=describe(
            "Vocabulary to use instead of a new one: a file with one symbol per line, or a .json.",
            is_path=True,
        ),
    )
    cutoffs: tuple[int, ...] | None = define_field(
        None,
        "First ids of the second and later bins of the adaptive softmax, ascending and below the "
        "size of the vocabulary; used by models trained without a preset.",
        kind=list,
    )
    num_workers: int = define_field(
        1, "Number of chunks of text to process in parallel.", lower_bound=1
    )
    overwrite: bool = define_field(False, "Replace existing records.")

    def describe(self) -> dict[str, Any]:
        """Returns the options that affect the records, in the form stored in `records.json`."""
        names = (
            name
            for name, datasets in DATASETS_OF_OPTION.items()
            if self.dataset in datasets and name not in _WITHOUT_EFFECT
        )
        described = {name: getattr(self, name) for name in sorted(["dataset", *names])}
        # Lists are stored as lists of strings, as on the command line.
        return {
            name: list(map(str, value)) if isinstance(value, tuple) else value
            for name, value in described.items()
        }

    def make_corpus(self) -> Corpus:
        """Returns the data set that the options describe."""
        if self.dataset == TEXT:
            patterns = {split: getattr(self, split) for split in SPLITS}
            rule, separator = self.documents, self.document_separator
            return OwnTexts(
                TEXT,
                self.level,
                learning=LearningOptions(
                    special=self.special or (),
                    min_count=self.min_count,
                    max_symbols=self.max_symbols,
                    unknown=self.unknown,
                    lower_case=self.lower_case,
                    line_end=(self.line_end or None) if self.level == "word" else None,
                ),
                counted=() if self.level == "byte" else ("train",),
                vocabulary_file=self.vocab_file,
                documents=(rule,) if separator is None else ("separator", separator),
                cutoffs=self.cutoffs or (),
                encoding_errors=self.encoding_errors,
                patterns={split: given for split, given in patterns.items() if given},
                valid_fraction=self.valid_fraction,
            )
        corpus = CORPORA[self.dataset]
        if not isinstance(corpus, PublicSet):
            return replace(corpus, vocabulary_file=self.vocab_file)
        sizes = (self.valid_size, self.test_size)
        corpus = replace(corpus, encoding_errors=self.encoding_errors, sizes=sizes)
        if sizes != (None, None):  # the published counts are those of other splits
            counts = {name: n for name, n in corpus.counts.items() if name not in SPLITS}
            corpus = replace(corpus, counts=counts)
        if corpus.num_shuffles:
            corpus = replace(corpus, num_shuffles=self.num_shuffles, seed=self.seed)
        if self.drop_newlines:
            # Without line breaks there are no lines that could separate documents.
            counts = {"vocabulary": corpus.counts["vocabulary"] - 1}
            corpus = replace(corpus, parse=drop_newlines, documents=("none",), counts=counts)
        return corpus
