"""Makes the records of a data set.

python data_prep/make_tfrecords.py --dataset pydoc
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import flags
from corpora import CORPORA, Prepared, prepare_enwik8, prepare_pydoc, prepare_text8
from tqdm import tqdm

from txl_tf.data.vocabulary import Vocabulary
from txl_tf.data.writing import check_replaceable, write_records
from txl_tf.program import define_flag, run_program

# The data sets that these flags are for; the others are for all.
_DATASETS_OF_FLAG = {
    "raw_dir": ("text8", "enwik8"),
    "valid_size": ("text8", "enwik8"),
    "test_size": ("text8", "enwik8"),
    "drop_newlines": ("enwik8",),
}
_CHUNK_SIZE = 2**22


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(str(__doc__), define_flags(), make_records, argv)


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, not yet read."""
    options = flags.FlagValues()

    define_flag(
        options, "dataset", str, None, f"Data set to make: {', '.join(CORPORA)}.", required=True
    )
    define_flag(options, "data_dir", str, None, "Where to write. [default: data/DATASET]")
    define_flag(options, "raw_dir", str, None, "Where the raw file lies. [default: raw/DATASET]")
    for split in ("valid", "test"):
        text = f"text8, enwik8: bytes of the raw file that go to {split}. [default: 5,000,000]"
        define_flag(options, f"{split}_size", int, None, text, lower_bound=1)
    define_flag(options, "drop_newlines", bool, False, "enwik8: drop byte 10, as in 2019.")
    define_flag(options, "overwrite", bool, False, "Replace the records that are there.")
    return options


def check_flags(options: flags.FlagValues) -> None:
    """Checks that the data set is known, and that no flag was given that is not for it.

    Raises:
        flags.Error: If it is not so.
    """
    if options.dataset not in CORPORA:
        raise flags.Error(f"unknown data set {options.dataset!r}. Known: {', '.join(CORPORA)}")
    for name, datasets in _DATASETS_OF_FLAG.items():
        if options[name].present and options.dataset not in datasets:
            raise flags.Error(
                f"flag --{name} is for {' and '.join(datasets)}. "
                f"Received: --dataset={options.dataset}"
            )


def make_records(options: flags.FlagValues) -> None:
    """Makes the data set that the flags describe, and prints what it holds."""
    check_flags(options)
    start = time.monotonic()
    data_dir = Path(options.data_dir or f"data/{options.dataset}")
    # Before the corpus is read, which can take longer than writing it.
    check_replaceable(data_dir, overwrite=options.overwrite)
    prepared = prepare_corpus(options)
    if prepared.note:
        print(prepared.note)
    info = write_records(
        data_dir,
        dataset=options.dataset,
        vocabulary=prepared.vocabulary,
        splits={
            name: encode_chunks(name, text, prepared.vocabulary)
            for name, text in prepared.splits.items()
        },
        overwrite=options.overwrite,
    )
    for name in info.splits:
        print(f"{name}: {info.count_tokens(name):,} tokens")
    print(f"vocabulary: {len(info.vocabulary)} {info.vocabulary.level}s")
    print(f"Wrote `{data_dir}` in {time.monotonic() - start:.1f} seconds.")


def prepare_corpus(options: flags.FlagValues) -> Prepared:
    """Reads the data set that the flags describe."""
    if options.dataset == "pydoc":
        return prepare_pydoc()
    raw_dir = Path(options.raw_dir or f"raw/{options.dataset}")
    held_out = CORPORA[options.dataset].held_out
    valid_size, test_size = options.valid_size or held_out, options.test_size or held_out
    if options.dataset == "text8":
        return prepare_text8(raw_dir, valid_size=valid_size, test_size=test_size)
    return prepare_enwik8(
        raw_dir, valid_size=valid_size, test_size=test_size, drop_newlines=options.drop_newlines
    )


def encode_chunks(name: str, text: str | bytes, vocabulary: Vocabulary) -> Iterator[np.ndarray]:
    """Yields the ids of a text piece by piece, with a progress bar.

    Args:
        name: The split, for the bar.
        text: The text, of characters or bytes.
        vocabulary: Its symbols.
    """
    with tqdm(total=len(text), desc=name, unit="B", unit_scale=True, disable=None) as bar:
        for start in range(0, len(text), _CHUNK_SIZE):
            chunk = text[start : start + _CHUNK_SIZE]
            yield vocabulary.encode(chunk)
            bar.update(len(chunk))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
