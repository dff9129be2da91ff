"""What to prepare, where and how: all that the command line says, in one object."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txl_tf.data.levels import Level
from txl_tf.data.text_files import EncodingErrors
from txl_tf.preparation.corpora import CORPORA, SPLITS

TEXT = "text"  # the data set of the user's own files
DATASETS = (*CORPORA, TEXT)
_PUBLIC = tuple(name for name, corpus in CORPORA.items() if corpus.layouts)
_CUT = tuple(name for name, corpus in CORPORA.items() if corpus.raw)

# The data sets that these options are for; the others are for all.
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
# They say where the files are. The records list the files themselves, by name and size.
_PLACES = ("raw_dir", "vocab_file", *SPLITS)


@dataclass(frozen=True)
class PrepareOptions:
    """How to prepare a data set. `DATASETS_OF_OPTION` lists options that only some sets have.

    Args:
        dataset: A name in `CORPORA`, or "text" for the user's own files.
        data_dir: Where to write: a folder, or an address.
        raw_dir: The folder of the raw files of a public set; missing ones are downloaded to it.
        valid_size: The bytes of the raw file that go to valid; `None` for the default.
        test_size: The bytes of the raw file that go to test; `None` for the default.
        drop_newlines: Whether to drop byte 10, as the 2019 release did in enwik8.
        num_shuffles: How many orders of the sentences to write.
        seed: The seed of these orders.
        encoding_errors: As in `TextSource`.
        train: Patterns of the training files.
        valid: Patterns of the validation files.
        test: Patterns of the test files.
        level: What a symbol is.
        documents: Where documents begin, see `DocumentFinder`.
        document_separator: A line that ends a document, in place of `documents`.
        min_count: As in `LearningOptions`.
        max_symbols: As in `LearningOptions`.
        special: As in `LearningOptions`.
        unknown: As in `LearningOptions`.
        lower_case: As in `LearningOptions`.
        line_end: The symbol for the end of a line; "" for none.
        vocab_file: A vocabulary that takes the place of one learnt from the text.
        cutoffs: Ids at which the adaptive softmax starts a new bin.
        num_workers: How many pieces of text to work on at once.
        overwrite: Whether to replace a data set in `data_dir`.
    """

    dataset: str
    data_dir: str
    raw_dir: Path
    valid_size: int | None = None
    test_size: int | None = None
    drop_newlines: bool = False
    num_shuffles: int = 4
    seed: int = 0
    encoding_errors: EncodingErrors = "strict"
    train: tuple[str, ...] | None = None
    valid: tuple[str, ...] | None = None
    test: tuple[str, ...] | None = None
    level: Level = "byte"
    documents: str = "file"
    document_separator: str | None = None
    min_count: int = 1
    max_symbols: int | None = None
    special: tuple[str, ...] | None = None
    unknown: str | None = None
    lower_case: bool = False
    line_end: str = "<eos>"
    vocab_file: Path | None = None
    cutoffs: tuple[int, ...] | None = None
    num_workers: int = 1
    overwrite: bool = False

    def describe(self) -> dict[str, Any]:
        """Returns the options that change what is made, as `records.json` holds them."""
        names = (
            name
            for name, datasets in DATASETS_OF_OPTION.items()
            if self.dataset in datasets and name not in _PLACES
        )
        described = {name: getattr(self, name) for name in sorted(["dataset", *names])}
        # Records hold a list as the command line has it: texts.
        return {
            name: list(map(str, value)) if isinstance(value, tuple) else value
            for name, value in described.items()
        }
