"""Makes the records of a data set.

python data_prep/make_tfrecords.py --dataset pydoc
python data_prep/make_tfrecords.py --dataset wt103
python data_prep/make_tfrecords.py --dataset text --train 'a/*.txt.gz' --valid b.txt --level subword
"""

import dataclasses
import itertools
import os
import sys
from pathlib import Path
from typing import Any

from absl import flags

from txl_tf.cli.legacy_flags import PREPARATION_FLAGS, define_legacy_flags, describe_legacy_flags
from txl_tf.cli.program import define_flag, parse_cutoffs, run_program
from txl_tf.data.documents import RULES
from txl_tf.data.files import is_remote, join_path
from txl_tf.data.learning import LEVELS_OF_OPTION
from txl_tf.data.levels import LEVELS
from txl_tf.data.subwords import DEFAULT_SYMBOLS
from txl_tf.preparation.corpora import SPLITS
from txl_tf.preparation.options import DATASETS, DATASETS_OF_OPTION, TEXT, PrepareOptions
from txl_tf.preparation.prepare import prepare

# Of `--dataset text`; a level may lack some.
_LEARNING_FLAGS = ("min_count", "max_symbols", "special", "unknown", "lower_case", "line_end")


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(str(__doc__), define_flags(), make_records, argv)


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, not yet read."""
    options = flags.FlagValues()

    def define(name: str, kind: type, text: str, **rules: Any) -> None:
        datasets = DATASETS_OF_OPTION.get(name, ())
        prefix = f"{', '.join(datasets)}: " if 0 < len(datasets) <= len(DATASETS) // 2 else ""
        default = rules.pop("default", getattr(PrepareOptions, name, None))
        define_flag(options, name, kind, default, prefix + text, **rules)

    define("dataset", str, f"Data set to make: {', '.join(DATASETS)}.", required=True)
    define("data_dir", str, "Where to write. [default: data/DATASET]", is_path=True)
    text = "Where raw files are, or are downloaded to. [default: raw/DATASET]"
    define("raw_dir", str, text, is_path=True)
    for split in ("valid", "test"):
        text = f"bytes of the raw file that go to {split}. [default: 5,000,000]"
        define(f"{split}_size", int, text, lower_bound=1)
    define("drop_newlines", bool, "drop byte 10, as the 2019 release did.")
    define("num_shuffles", int, "orders of the sentences to write.", lower_bound=1)
    define("seed", int, "of these orders.", lower_bound=0)
    for split in SPLITS:
        text = "files, separated by commas; * and ** as in a shell (quoted)."
        define(split, list, text, is_path=True)
    define("level", str, f"what a symbol is: {', '.join(LEVELS)}.")
    define("encoding_errors", str, "Bytes that are not UTF-8: strict (an error), replace.")
    define("documents", str, f"where documents begin: {', '.join(RULES[:-1])}.")
    define("document_separator", str, "a line that ends a document.")
    define("min_count", int, "how often a symbol must occur.", lower_bound=1)
    define("max_symbols", int, "the most symbols; of subwords 8192 unless given.", lower_bound=1)
    define("special", list, "words that come first in the vocabulary.")
    define("unknown", str, "the symbol for unknown ones, such as <unk>.")
    define("lower_case", bool, "put the text into lower case.")
    define("line_end", str, "the symbol for the end of a line; empty for none.")
    text = "a vocabulary, a symbol a line or .json, instead of a new one."
    define("vocab_file", str, text, is_path=True)
    define(
        "cutoffs",
        list,
        "ids at which the adaptive softmax starts a new bin, ascending and below the size of the "
        "vocabulary; models trained without a preset have them.",
    )
    text = "Pieces to work on at once."
    define("num_workers", int, text, default=os.cpu_count() or 1, lower_bound=1)
    define("overwrite", bool, "Replace the records that are there.")
    define_legacy_flags(options, PREPARATION_FLAGS)
    return options


def make_records(options: flags.FlagValues) -> None:
    """Makes the data set that the flags describe, and prints what it holds."""
    prepare(make_options(options))


def make_options(options: flags.FlagValues) -> PrepareOptions:
    """Checks the flags and returns what they say; prints what those of the 2019 release change.

    Raises:
        flags.Error: If a flag has a wrong value, or is not for this data set.
    """
    check_flags(options)
    cutoffs = None if options.cutoffs is None else check_cutoffs(options)
    for line in describe_legacy_flags(options, PREPARATION_FLAGS):
        print(line)
    raw_dir, data_dir = choose_folders(options)
    values: dict[str, Any] = {
        field.name: options[field.name].value for field in dataclasses.fields(PrepareOptions)
    }
    values |= {"raw_dir": raw_dir, "data_dir": data_dir, "cutoffs": cutoffs}
    for name in (*SPLITS, "special"):
        values[name] = None if values[name] is None else tuple(values[name])
    if options.vocab_file:
        values["vocab_file"] = Path(options.vocab_file)
    if options["num_shuffle"].present and not options["num_shuffles"].present:
        values["num_shuffles"] = options.num_shuffle  # the release's name for it
    return PrepareOptions(**values)


def check_flags(options: flags.FlagValues) -> None:
    """Checks that the data set is known, and that no flag was given that is not for it.

    Raises:
        flags.Error: If it is not so.
    """
    if options.dataset not in DATASETS:
        known = ", ".join(DATASETS)
        raise flags.Error(f"unknown data set {options.dataset!r}. Known: {known}")
    for name, datasets in DATASETS_OF_OPTION.items():
        if options[name].present and options.dataset not in datasets:
            raise flags.Error(
                f"flag --{name} is for {' and '.join(datasets)}. "
                f"Received: --dataset={options.dataset}"
            )
    _check_choice(options, "encoding_errors", ("strict", "replace"))
    if options.dataset == TEXT:
        _check_text_flags(options)


def _check_text_flags(options: flags.FlagValues) -> None:
    _check_choice(options, "level", LEVELS)
    _check_choice(options, "documents", RULES[:-1])
    if not options.train:
        raise flags.Error("--dataset=text needs --train, its files")
    for name in _LEARNING_FLAGS:
        levels = LEVELS_OF_OPTION[name]
        if options[name].present and options.level not in levels:
            raise flags.Error(
                f"flag --{name} is for --level={' or '.join(levels)}. "
                f"Received: --level={options.level}"
            )
    if options.vocab_file:
        for name in ("min_count", "max_symbols", "special"):
            if options[name].present:
                raise flags.Error(f"flag --{name} is for a new vocabulary, not with --vocab_file")
    if options.document_separator is not None and options["documents"].present:
        raise flags.Error("--documents and --document_separator exclude each other")


def _check_choice(options: flags.FlagValues, name: str, choices: tuple[str, ...]) -> None:
    if options[name].value not in choices:
        raise flags.Error(
            f"--{name} must be one of {', '.join(choices)}. Received: {options[name].value!r}"
        )


def check_cutoffs(options: flags.FlagValues) -> tuple[int, ...]:
    """Checks the cutoffs as far as that is possible without the vocabulary, and returns them.

    Raises:
        flags.Error: If they are not integers, do not rise, or are beyond every vocabulary.
    """
    cutoffs = parse_cutoffs(options.cutoffs)
    received = f"Received: {','.join(map(str, cutoffs))}"
    if any(low >= high for low, high in itertools.pairwise((0, *cutoffs))):
        raise flags.Error(f"--cutoffs must be positive and ascending. {received}")
    largest = {"byte": 256, "subword": options.max_symbols or DEFAULT_SYMBOLS}
    n_symbols = largest.get(options.level, options.max_symbols)
    if cutoffs and n_symbols and not options.vocab_file and cutoffs[-1] >= n_symbols:
        raise flags.Error(
            "--cutoffs must be below the size of the vocabulary, which is at most "
            f"{n_symbols}. {received}"
        )
    return cutoffs


def choose_folders(options: flags.FlagValues) -> tuple[Path, str]:
    """Returns the folder of the raw files and that of the records.

    On a command line of the 2019 release --data_dir is the folder of the texts, and records go to
    `tfrecords` in it; a line says so.

    Raises:
        flags.Error: If the raw files are at an address: `Path` would make a folder of that name.
    """
    raw_dir, data_dir = options.raw_dir, options.data_dir
    is_release = any(options[flag.name].present for flag in PREPARATION_FLAGS)
    if is_release and data_dir and not raw_dir and options.dataset in DATASETS_OF_OPTION["raw_dir"]:
        raw_dir, data_dir = data_dir, join_path(data_dir, "tfrecords")
        print(
            f"As in the 2019 release, texts are looked for in `{raw_dir}`, and records go "
            f"to `{data_dir}`; with --raw_dir they go to --data_dir itself."
        )
    if is_remote(raw_dir or ""):
        raise flags.Error(f"--raw_dir must be a folder here. Received: {raw_dir}")
    return Path(raw_dir or f"raw/{options.dataset}"), data_dir or f"data/{options.dataset}"


if __name__ == "__main__":
    # Words and subwords are split by tensorflow, on the CPU: it is not to take a GPU's memory.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    sys.exit(main(sys.argv))
