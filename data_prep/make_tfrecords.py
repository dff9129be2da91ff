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

from txl_tf.cli.config_flags import parse_cutoffs
from txl_tf.cli.flags import define_flag
from txl_tf.cli.legacy_flags import PREPARATION_FLAGS, define_legacy_flags, describe_legacy_flags
from txl_tf.cli.program import run_program
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
    return run_program(__doc__, define_flags(), make_records, argv)


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, not yet read."""
    options = flags.FlagValues()

    def define(name: str, kind: type, text: str, **rules: Any) -> None:
        datasets = DATASETS_OF_OPTION.get(name, ())
        prefix = f"For {', '.join(datasets)}: " if 0 < len(datasets) <= len(DATASETS) // 2 else ""
        default = rules.pop("default", getattr(PrepareOptions, name, None))
        define_flag(options, name, kind, default, prefix + text, **rules)

    define("dataset", str, "Data set to make.", required=True, choices=DATASETS)
    define("data_dir", str, "Folder to write. [default: data/DATASET]", is_path=True)
    text = "Folder of the raw files; missing ones are downloaded to it. [default: raw/DATASET]"
    define("raw_dir", str, text, is_path=True)
    for split in ("valid", "test"):
        text = f"Bytes of the raw file that go to {split}. [default: 5,000,000]"
        define(f"{split}_size", int, text, lower_bound=1)
    define("drop_newlines", bool, "Drop byte 10, as the 2019 release did.")
    define("num_shuffles", int, "Number of orders of the sentences to write.", lower_bound=1)
    define("seed", int, "Seed of these orders.", lower_bound=0)
    for split in SPLITS:
        text = f"Files of {split}, separated by commas; * and ** as in a shell (quote them)."
        define(split, list, text, is_path=True)
    define("level", str, "Kind of symbols.", choices=LEVELS)
    text = "Treatment of bytes that are not UTF-8: an error, or a replacement character."
    define("encoding_errors", str, text, choices=("strict", "replace"))
    define("documents", str, "Where documents begin.", choices=RULES[:-1])
    define("document_separator", str, "Line that ends a document.")
    define("min_count", int, "Number of times that a symbol must occur.", lower_bound=1)
    text = f"Largest size of the vocabulary. [default: no limit; {DEFAULT_SYMBOLS} for subwords]"
    define("max_symbols", int, text, lower_bound=1)
    define("special", list, "Words that come first in the vocabulary.")
    define("unknown", str, "Symbol for unknown words, such as <unk>.")
    define("lower_case", bool, "Convert the text to lower case.")
    define("line_end", str, "Symbol for the end of a line; empty for none.")
    text = "Vocabulary to use instead of a new one: a file with a symbol per line, or .json."
    define("vocab_file", str, text, is_path=True)
    define(
        "cutoffs",
        list,
        "First ids of the second and later bins of the adaptive softmax, ascending and below the "
        "size of the vocabulary; models trained without a preset have them.",
    )
    text = "Number of pieces to work on at once."
    define("num_workers", int, text, default=os.cpu_count() or 1, lower_bound=1)
    define("overwrite", bool, "Replace existing records.")
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
    """Checks that every flag that was given is for the data set.

    Raises:
        flags.Error: If it is not so.
    """
    for name, datasets in DATASETS_OF_OPTION.items():
        if options[name].present and options.dataset not in datasets:
            raise flags.Error(
                f"flag --{name} is for {' and '.join(datasets)}. "
                f"Received: --dataset={options.dataset}"
            )
    if options.dataset == TEXT:
        _check_text_flags(options)


def _check_text_flags(options: flags.FlagValues) -> None:
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
