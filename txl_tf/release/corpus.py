"""Reads `cache.pkl`, the pickled corpora of the 2019 release."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from txl_tf.data.text.vocabulary import SYMBOL_RULES, Level, Vocabulary
from txl_tf.errors import UserError, explain_errors
from txl_tf.preparation.corpora import SPLITS
from txl_tf.release.pickles import ARRAY_NAMES, Array, Record, decode_text, read_pickle_file

_EOS, _SENTENCE = "<eos>", "<S>"
_UNKNOWN = ("<unk>", "<UNK>")
_SPACE = "_"
# The level and the end-of-line symbol of the release's data sets.
_KINDS: dict[str, tuple[Level, str | None]] = {
    "text8": ("char", None),
    "enwik8": ("byte", None),
    "wt103": ("word", _EOS),
    "wt2": ("word", _EOS),
    "ptb": ("word", _EOS),
    "lm1b": ("word", _SENTENCE),
}


class _Corpus(Record):
    """An object of the release's class `Corpus`."""


class _Vocab(Record):
    """An object of the release's class `Vocab`."""


_NAMES = {
    **ARRAY_NAMES,
    ("__main__", "Corpus"): _Corpus,
    ("data_utils", "Corpus"): _Corpus,
    ("vocabulary", "Vocab"): _Vocab,
}


@dataclass(frozen=True, eq=False)
class Corpus:
    """A data set as the release stored it.

    In the 2019 code: `Corpus` of data_utils.py.

    Args:
        dataset: Its name; `None` if it has none, or one that contradicts its vocabulary (the
            release's script for WikiText-103 says "enwik8").
        vocabulary: Its symbols, in the release's order.
        cutoffs: The ids at which the adaptive softmax starts a new bin, limited to those within the
            vocabulary.
        splits: The ids of "train", "valid" and "test", (n,) int32 each. A split whose texts the
            release left in files, such as lm1b's training split, is missing.
    """

    dataset: str | None
    vocabulary: Vocabulary
    cutoffs: tuple[int, ...]
    splits: dict[str, np.ndarray]


def read_corpus(path: str | os.PathLike[str], dataset: str | None = None) -> Corpus:
    """Reads a `cache.pkl` of Python 2 or 3. Nothing in it is executed.

    Args:
        path: The file.
        dataset: The name of the data set, instead of the one in the file. It matters only where the
            vocabulary is ambiguous.

    Raises:
        UserError: If the file cannot be read, is damaged, contains a name that a corpus does not
            need, or holds symbols or ids that no `Vocabulary` can have.
    """
    with explain_errors(f"`{path}` cannot be read", UserError, OSError):
        top = read_pickle_file(os.fspath(path), _NAMES)
        attributes = _read_attributes(top, _Corpus)
        vocabulary, dataset = _read_vocabulary(top, dataset)
        return Corpus(
            check_name(dataset, vocabulary),
            vocabulary,
            read_cutoffs(attributes.get("cutoffs", []), len(vocabulary)),
            _read_splits(attributes, len(vocabulary)),
        )


def load_vocabulary(path: str | os.PathLike[str], dataset: str | None = None) -> Vocabulary:
    """Reads the vocabulary of a `cache.pkl` of Python 2 or 3. Nothing in it is executed.

    Args:
        path: The file, which holds a corpus or only a vocabulary.
        dataset: As in `read_corpus`.

    Returns:
        The vocabulary.

    Raises:
        UserError: As in `read_corpus`.
    """
    with explain_errors(f"`{path}` cannot be read", UserError, OSError):
        return _read_vocabulary(read_pickle_file(os.fspath(path), _NAMES), dataset)[0]


def check_name(dataset: str | None, vocabulary: Vocabulary) -> str | None:
    """Returns the name of a data set; `None` if it contradicts the vocabulary."""
    kind = (vocabulary.level, vocabulary.line_end)
    return dataset if _KINDS.get(dataset or "", kind) == kind else None


def _read_vocabulary(top: Any, dataset: str | None) -> tuple[Vocabulary, str | None]:
    """Returns the vocabulary of a corpus or vocabulary object, and the name of the data set."""
    if type(top) is _Corpus:
        corpus = _read_attributes(top, _Corpus)
        top = corpus.get("vocab")
        if dataset is None and corpus.get("dataset") is not None:
            dataset = decode_text(corpus["dataset"])
    return _make_vocabulary(_read_attributes(top, _Vocab), dataset), dataset


def _read_attributes(record: Any, kind: type[Record]) -> dict[str, Any]:
    """Returns the attributes of a record that Python 2 or 3 wrote."""
    if type(record) is not kind:
        raise UserError(f"it does not hold a {kind.__name__[1:]} of the 2019 release")
    return {decode_text(name): value for name, value in record.attributes.items()}


def _make_vocabulary(attributes: Mapping[str, Any], dataset: str | None) -> Vocabulary:
    def get(name: str, kind: type, default: Any = None) -> Any:
        value = attributes.get(name, default)
        if type(value) is not kind:
            raise UserError(f"`{name}` of its vocabulary is not of type {kind.__name__}")
        return value

    symbols = _read_symbols(get("idx2sym", list), get("sym2idx", dict))
    delimiter = attributes.get("delimiter")
    if delimiter not in (None, "", b""):
        raise UserError("its vocabulary does not split texts at white space")
    level = _choose_level(symbols, dataset) if delimiter is None else "char"
    if level == "byte":
        return Vocabulary(level, symbols)
    unknown = None
    if attributes.get("unk_idx") is not None:
        index = get("unk_idx", int)
        if not 0 <= index < len(symbols):
            raise UserError("`unk_idx` of its vocabulary is not an id")
        unknown = symbols[index]
    if level == "char":
        # If texts are split at white space, the release wrote spaces as "_".
        space = _SPACE if delimiter is None and _SPACE in symbols else None
        return Vocabulary(level, symbols, space=space, unknown=unknown)
    special, line_start, line_end = get("special", list, []), None, None
    if _SENTENCE in symbols and _EOS not in special and _EOS.encode() not in special:
        line_start = line_end = _SENTENCE
    elif _EOS in symbols:
        line_end = _EOS
    return Vocabulary(
        level,
        symbols,
        unknown=unknown or next((symbol for symbol in _UNKNOWN if symbol in symbols), None),
        lower_case=get("lower_case", bool),
        line_start=line_start,
        line_end=line_end,
    )


def _read_symbols(symbols: list[Any], ids: dict[Any, Any]) -> tuple[str, ...]:
    """Returns the symbols ordered by id, on which both tables must agree."""
    if not 0 < len(symbols) == len(ids):
        raise UserError(f"its vocabulary has {len(symbols)} symbols, and ids of {len(ids)}")
    for i, symbol in enumerate(symbols):
        if type(symbol) not in (str, bytes) or ids.get(symbol) != i:
            raise UserError(f"symbol {i} of its vocabulary is not a text with this id")
    return tuple(map(decode_text, symbols))


def _choose_level(symbols: tuple[str, ...], dataset: str | None) -> Level:
    """Returns the level of the symbols; the name of the data set decides ambiguous cases."""
    levels: tuple[Level, ...] = ("byte", "char")
    fitting = [level for level in levels if all(map(SYMBOL_RULES[level][1], symbols))]
    wanted, _ = _KINDS.get(dataset or "", ("word", None))
    if wanted in fitting:
        return wanted
    return fitting[0] if fitting else "word"


def read_cutoffs(cutoffs: Any, n_symbols: int) -> tuple[int, ...]:
    """Returns the cutoffs without the first and the last, which are 0 and the vocabulary size."""
    if type(cutoffs) not in (list, tuple) or any(type(cutoff) is not int for cutoff in cutoffs):
        raise UserError("its cutoffs are not integers")
    # The release has the cutoffs of the full data set even if the vocabulary is smaller.
    inner = tuple(cutoff for cutoff in cutoffs[1:-1] if cutoff < n_symbols)
    if any(left >= right for left, right in zip((0, *inner), inner, strict=False)):
        raise UserError("its cutoffs are not ascending")
    return inner


def _read_splits(attributes: Mapping[str, Any], n_symbols: int) -> dict[str, np.ndarray]:
    """Returns the ids of the splits, without those whose texts the release left in files."""
    splits = {}
    for split in SPLITS:
        found = attributes.get(split)
        if found is None or (type(found) is list and all(type(x) in (str, bytes) for x in found)):
            continue
        if type(found) is not Array:
            raise UserError(f"`{split}` is neither a row of ids nor a list of files")
        ids = found.values
        if ids.size and not 0 <= ids.min() <= ids.max() < n_symbols:
            raise UserError(f"`{split}` holds ids outside of its {n_symbols} symbols")
        splits[split] = ids.astype(np.int32)
    return splits
