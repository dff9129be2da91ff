"""Makes the records of a data set.

python data_prep/make_tfrecords.py --dataset pydoc
python data_prep/make_tfrecords.py --dataset wt103
python data_prep/make_tfrecords.py --dataset text --train 'a/*.txt.gz' --valid b.txt --level subword
"""

import itertools
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from absl import flags
from corpora import CORPORA, SPLITS
from plan import Plan, plan_corpus, plan_pydoc, plan_text
from prepare import prepare_plan

from txl_tf.cli.config_flags import parse_cutoffs
from txl_tf.cli.flags import define_flag
from txl_tf.cli.legacy_flags import PREPARATION_FLAGS, define_legacy_flags, describe_legacy_flags
from txl_tf.cli.program import run_program
from txl_tf.data.documents import RULES
from txl_tf.data.files import is_remote, join_path
from txl_tf.data.learning import LEVELS_OF_OPTION
from txl_tf.data.levels import LEVELS
from txl_tf.data.reading import open_records
from txl_tf.data.records import RecordError, RecordsInfo
from txl_tf.data.subwords import DEFAULT_SYMBOLS
from txl_tf.data.writing import check_folder, holds_records

_TEXT = "text"
_DATASETS = (*CORPORA, _TEXT)
_PUBLIC = tuple(name for name, corpus in CORPORA.items() if corpus.layouts)
_CUT = tuple(name for name, corpus in CORPORA.items() if corpus.raw)

# The data sets that these flags are for; the others are for all.
_DATASETS_OF_FLAG = {
    "raw_dir": _PUBLIC,
    "valid_size": _CUT,
    "test_size": _CUT,
    "drop_newlines": ("enwik8",),
    "num_shuffles": ("lm1b",),
    "seed": ("lm1b",),
    "encoding_errors": (*_PUBLIC, _TEXT),
    **dict.fromkeys((*SPLITS, "level", "documents", "document_separator"), (_TEXT,)),
    **dict.fromkeys(("min_count", "max_symbols", "special", "unknown", "lower_case"), (_TEXT,)),
    **dict.fromkeys(("line_end", "vocab_file", "cutoffs"), (_TEXT,)),
}
# Of `--dataset text`; a level may lack some.
_LEARNING_FLAGS = ("min_count", "max_symbols", "special", "unknown", "lower_case", "line_end")
# They change where or how fast, not what is made.
_NOT_REMEMBERED = ("data_dir", "raw_dir", "overwrite", "num_workers", "vocab_file", *SPLITS)


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(__doc__, define_flags(), make_records, argv)


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, not yet read."""
    options = flags.FlagValues()
    define_flag(
        options, "dataset", str, None, "Data set to make.", required=True, choices=_DATASETS
    )
    define_flag(
        options, "data_dir", str, None, "Folder to write. [default: data/DATASET]", is_path=True
    )
    define_flag(
        options,
        "raw_dir",
        str,
        None,
        "Folder of the raw files, which are downloaded to it if need be. [default: raw/DATASET]",
        is_path=True,
    )
    for split in ("valid", "test"):
        define_flag(
            options,
            f"{split}_size",
            int,
            None,
            f"Bytes of the raw file that go to {split}. [default: 5,000,000]",
            lower_bound=1,
        )
    define_flag(options, "drop_newlines", bool, False, "Drop byte 10, as the 2019 release did.")
    define_flag(
        options,
        "num_shuffles",
        int,
        4,
        "Number of orders in which the sentences are written.",
        lower_bound=1,
    )
    define_flag(options, "seed", int, 0, "Seed of these orders.", lower_bound=0)
    for split in SPLITS:
        define_flag(
            options,
            split,
            list,
            None,
            "Files, separated by commas; * and ** as in a shell (quote them).",
            is_path=True,
        )
    define_flag(options, "level", str, "byte", "Kind of symbols.", choices=LEVELS)
    define_flag(
        options,
        "encoding_errors",
        str,
        "strict",
        "Treatment of bytes that are not UTF-8: an error, or a replacement character.",
        choices=("strict", "replace"),
    )
    define_flag(options, "documents", str, "file", "Where documents begin.", choices=RULES[:-1])
    define_flag(options, "document_separator", str, None, "Line that ends a document.")
    define_flag(
        options, "min_count", int, 1, "Number of times that a symbol must occur.", lower_bound=1
    )
    define_flag(
        options,
        "max_symbols",
        int,
        None,
        f"Largest size of the vocabulary. [default: no limit; {DEFAULT_SYMBOLS} for subwords]",
        lower_bound=1,
    )
    define_flag(options, "special", list, None, "Words that come first in the vocabulary.")
    define_flag(options, "unknown", str, None, "Symbol for unknown ones, such as <unk>.")
    define_flag(options, "lower_case", bool, False, "Convert the text to lower case.")
    define_flag(options, "line_end", str, "<eos>", "Symbol for the end of a line; empty for none.")
    define_flag(
        options,
        "vocab_file",
        str,
        None,
        "Vocabulary to use instead of a new one: a file with a symbol per line, or .json.",
        is_path=True,
    )
    define_flag(
        options,
        "cutoffs",
        list,
        None,
        "First ids of the second and later bins of the adaptive softmax, ascending and below "
        "the size of the vocabulary; models trained without a preset have them.",
    )
    define_flag(
        options,
        "num_workers",
        int,
        os.cpu_count() or 1,
        "Number of pieces to work on at once.",
        lower_bound=1,
    )
    define_flag(options, "overwrite", bool, False, "Replace existing records.")
    for name, datasets in _DATASETS_OF_FLAG.items():
        if len(datasets) < len(_PUBLIC):
            options[name].help = f"For {', '.join(datasets)}: {options[name].help}"
    define_legacy_flags(options, PREPARATION_FLAGS)
    return options


def check_flags(options: flags.FlagValues) -> None:
    """Checks that every flag that was given is for the data set.

    Raises:
        flags.Error: If it is not so.
    """
    for name, datasets in _DATASETS_OF_FLAG.items():
        if options[name].present and options.dataset not in datasets:
            raise flags.Error(
                f"flag --{name} is for {' and '.join(datasets)}. "
                f"Received: --dataset={options.dataset}"
            )
    if options.dataset == _TEXT:
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
    _check_cutoffs(options)


def _check_cutoffs(options: flags.FlagValues) -> None:
    """Checks the cutoffs as far as they can be without the vocabulary."""
    cutoffs = parse_cutoffs(options.cutoffs or [])
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


def make_records(options: flags.FlagValues) -> None:
    """Makes the data set that the flags describe, and prints what it holds."""
    check_flags(options)
    follow_release(options)
    start = time.monotonic()
    data_dir = options.data_dir or f"data/{options.dataset}"
    check_folder(data_dir)
    plan = find_plan(options)
    arguments = describe_arguments(options)
    if not options.overwrite and holds_records(data_dir):
        check_done(data_dir, arguments, plan)
        print(f"`{data_dir}` was made with the same arguments before: nothing to do.")
        return
    if plan is None:
        plan = download_plan(options)
    info = prepare_plan(
        plan,
        data_dir,
        made_from={"arguments": arguments, "files": plan.files},
        num_workers=options.num_workers,
        overwrite=options.overwrite,
    )
    print_summary(info)
    print(f"Wrote `{data_dir}` in {time.monotonic() - start:.1f} seconds.")


def follow_release(options: flags.FlagValues) -> None:
    """Takes a command line of the 2019 release as that did, and prints what its flags change.

    Its --data_dir is the folder of the texts, and records go to `tfrecords` in it; its
    --num_shuffle is --num_shuffles.
    """
    lines = list(describe_legacy_flags(options, PREPARATION_FLAGS))
    for line in lines:
        print(line)
    if options["num_shuffle"].present and not options["num_shuffles"].present:
        options.num_shuffles = options.num_shuffle
    if lines and options.data_dir and not options.raw_dir and options.dataset in _PUBLIC:
        raw_dir = options.data_dir
        options["raw_dir"].value = raw_dir
        options["data_dir"].value = join_path(raw_dir, "tfrecords")
        print(
            f"As in the 2019 release, texts are looked for in `{options.raw_dir}`, and records go "
            f"to `{options.data_dir}`; with --raw_dir they go to --data_dir itself."
        )


def find_plan(options: flags.FlagValues) -> Plan | None:
    """Returns what the flags describe; `None` if raw files must be downloaded first."""
    if options.dataset == _TEXT:
        return plan_text(options)
    if options.dataset not in _PUBLIC:
        return plan_pydoc()
    return plan_corpus(options, _get_raw_dir(options))


def download_plan(options: flags.FlagValues) -> Plan:
    """Downloads the raw files and returns the plan.

    Raises:
        DownloadError: If they cannot be downloaded or unpacked.
        RecordError: If their folder holds what the 2019 release made of them instead.
    """
    # Imported here: only downloads need what this imports.
    from archives import ARCHIVES
    from unpacking import unpack

    from txl_tf.data.download import fetch

    raw_dir = _get_raw_dir(options)
    if (raw_dir / "cache.pkl").is_file():
        raise RecordError(
            f"`{raw_dir}` holds a corpus of the 2019 release, cache.pkl, and no texts. Its splits "
            f"become records with: python -m txl_tf.import_release "
            f"--source {shlex.quote(str(raw_dir.parent))} --out MODEL_DIR"
        )
    for archive in ARCHIVES[options.dataset]:
        path = fetch(archive, raw_dir)
        if path.suffix in (".gz", ".tgz"):
            unpack(path, raw_dir)
    plan = plan_corpus(options, raw_dir)
    if plan is None:
        raise RecordError(f"`{raw_dir}` does not hold the files of {options.dataset}.")
    return plan


def describe_arguments(options: flags.FlagValues) -> dict[str, Any]:
    """Returns the flags that change what is made, as JSON holds them."""
    names = [name for name in options if name not in _NOT_REMEMBERED]
    return {
        name: options[name].value
        for name in sorted(names)
        if options.dataset in _DATASETS_OF_FLAG.get(name, ("",)) or name == "dataset"
    }


def check_done(data_dir: str, arguments: dict[str, Any], plan: Plan | None) -> None:
    """Checks that the data set in a folder is the one that would be made.

    Args:
        data_dir: The folder, or an address.
        arguments: The flags.
        plan: The files; `None` if they are not there any more, which changes nothing.

    Raises:
        RecordError: If it was made in another way, or from other files, or is damaged.
    """
    try:
        made_from = open_records(data_dir).made_from
    except RecordError as error:
        raise RecordError(f"{error} --overwrite replaces it.") from error
    wanted = json.loads(json.dumps({"arguments": arguments, "files": plan.files if plan else None}))
    found = made_from.get("arguments", {})
    differing = [
        f"{name}={found.get(name)}"
        for name in sorted({*wanted["arguments"], *found})
        if wanted["arguments"].get(name) != found.get(name)
    ]
    if plan and not differing and made_from.get("files") != wanted["files"]:
        differing = ["other files, or files of other sizes"]
    if differing:
        raise RecordError(
            f"`{data_dir}` holds a data set made with {', '.join(differing)}; choose another "
            "--data_dir, or replace it with --overwrite."
        )


def print_summary(info: RecordsInfo) -> None:
    """Prints what a data set holds."""
    for name in info.splits:
        documents = info.documents.get(name)
        note = f", {documents.count:,} documents" if documents else ""
        print(f"{name}: {info.count_tokens(name):,} tokens{note}")
    print(f"vocabulary: {len(info.vocabulary):,} {info.vocabulary.level}s")


def _get_raw_dir(options: flags.FlagValues) -> Path:
    """Returns the folder of the raw files.

    Raises:
        flags.Error: it is an address: `Path` would make a folder here of that name.
    """
    if is_remote(options.raw_dir or ""):
        raise flags.Error(f"--raw_dir must be a folder here. Received: {options.raw_dir}")
    return Path(options.raw_dir or f"raw/{options.dataset}")


if __name__ == "__main__":
    # Words and subwords are split by tensorflow, on the CPU: it is not to take a GPU's memory.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    sys.exit(main(sys.argv))
