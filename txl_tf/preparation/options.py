"""The options of preparation: the content of the command line as one object."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from txl_tf.config.base import describe, document_fields
from txl_tf.data.documents import RULES
from txl_tf.data.levels import LEVELS, Level
from txl_tf.data.subwords import DEFAULT_SYMBOLS
from txl_tf.data.text_files import EncodingErrors
from txl_tf.preparation.corpora import CORPORA, SPLITS

TEXT = "text"  # a data set made from the user's own files
DATASETS = (*CORPORA, TEXT)
_PUBLIC = tuple(name for name, corpus in CORPORA.items() if corpus.layouts)
_CUT = tuple(name for name, corpus in CORPORA.items() if corpus.raw)

# The data sets that have these options; all data sets have the others.
DATASETS_OF_OPTION: Mapping[str, tuple[str, ...]] = {
    "raw_dir": _PUBLIC,
    "valid_size": _CUT,
    "test_size": _CUT,
    "drop_newlines": ("enwik8",),
    "num_shuffles": ("lm1b",),
    "seed": ("lm1b",),
    "encoding_errors": (*_PUBLIC, TEXT),
    **dict.fromkeys((*SPLITS, "level", "documents", "document_separator"), (TEXT,)),
    **dict.fromkeys(("min_count", "max_symbols", "special", "unknown", "lower_case"), (TEXT,)),
    **dict.fromkeys(("line_end", "vocab_file", "cutoffs"), (TEXT,)),
}
# Options that only locate files. The records list the files themselves, by name and size.
_PLACES = ("raw_dir", "vocab_file", *SPLITS)
# Rules of flags that `describe` lacks.
_PATH, _LIST, _INTEGER = {"is_path": True}, {"kind": list}, {"kind": int}


def _describe_size(split: str) -> dict[str, Any]:
    text = f"Number of bytes of the raw file for {split}. [default: 5,000,000]"
    return describe(text, lower_bound=1) | _INTEGER


def _describe_files(split: str) -> dict[str, Any]:
    text = f"Files of {split}, separated by commas; * and ** as in a shell (use quotes)."
    return describe(text) | _PATH | _LIST


@document_fields
@dataclass(frozen=True)
class PrepareOptions:
    """How to prepare a data set. `DATASETS_OF_OPTION` lists options that only some sets have."""

    dataset: str = field(metadata=describe("Data set to make.", choices=DATASETS))
    data_dir: str = field(metadata=describe("Folder to write. [default: data/DATASET]") | _PATH)
    raw_dir: Path = field(
        metadata=describe(
            "Folder of the raw files; missing ones are downloaded. [default: raw/DATASET]"
        )
        | _PATH
    )
    valid_size: int | None = field(default=None, metadata=_describe_size("valid"))
    test_size: int | None = field(default=None, metadata=_describe_size("test"))
    drop_newlines: bool = field(
        default=False, metadata=describe("Drop byte 10, as the 2019 release did.")
    )
    num_shuffles: int = field(
        default=4, metadata=describe("Number of sentence orders to write.", lower_bound=1)
    )
    seed: int = field(default=0, metadata=describe("Seed of the sentence orders.", lower_bound=0))
    encoding_errors: EncodingErrors = field(
        default="strict",
        metadata=describe(
            "Treatment of bytes that are not UTF-8: as an error, or replaced by U+FFFD.",
            choices=get_args(EncodingErrors),
        ),
    )
    train: tuple[str, ...] | None = field(default=None, metadata=_describe_files("train"))
    valid: tuple[str, ...] | None = field(default=None, metadata=_describe_files("valid"))
    test: tuple[str, ...] | None = field(default=None, metadata=_describe_files("test"))
    level: Level = field(
        default="byte",
        metadata=describe("Level at which the text is split into symbols.", choices=LEVELS),
    )
    documents: str = field(
        default="file", metadata=describe("Unit that forms a document.", choices=RULES[:-1])
    )
    document_separator: str | None = field(
        default=None, metadata=describe("Line that ends a document, instead of --documents.")
    )
    min_count: int = field(
        default=1, metadata=describe("Number of times that a symbol must occur.", lower_bound=1)
    )
    max_symbols: int | None = field(
        default=None,
        metadata=describe(
            f"Largest size of the vocabulary. [default: no limit; {DEFAULT_SYMBOLS} for subwords]",
            lower_bound=1,
        )
        | _INTEGER,
    )
    special: tuple[str, ...] | None = field(
        default=None, metadata=describe("Words that come first in the vocabulary.") | _LIST
    )
    unknown: str | None = field(
        default=None, metadata=describe("Symbol for unknown words, such as <unk>.")
    )
    lower_case: bool = field(default=False, metadata=describe("Convert the text to lower case."))
    line_end: str = field(
        default="<eos>", metadata=describe("Symbol for the end of a line; empty for none.")
    )
    vocab_file: Path | None = field(
        default=None,
        metadata=describe(
            "Vocabulary to use instead of a new one: a file with one symbol per line, or a .json."
        )
        | _PATH,
    )
    cutoffs: tuple[int, ...] | None = field(
        default=None,
        metadata=describe(
            "First ids of the second and later bins of the adaptive softmax, ascending and below "
            "the size of the vocabulary; models trained without a preset use them."
        )
        | _LIST,
    )
    num_workers: int = field(
        default=1,
        metadata=describe("Number of chunks of text to process in parallel.", lower_bound=1),
    )
    overwrite: bool = field(default=False, metadata=describe("Replace existing records."))

    def describe(self) -> dict[str, Any]:
        """Returns the options that affect the records, in the form stored in `records.json`."""
        names = (
            name
            for name, datasets in DATASETS_OF_OPTION.items()
            if self.dataset in datasets and name not in _PLACES
        )
        described = {name: getattr(self, name) for name in sorted(["dataset", *names])}
        # Lists are stored as lists of strings, as on the command line.
        return {
            name: list(map(str, value)) if isinstance(value, tuple) else value
            for name, value in described.items()
        }
