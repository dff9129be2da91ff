"""Creates the records of a data set.

txl prepare --dataset pydoc
txl prepare --dataset wt103
txl prepare --dataset release2019 --raw_dir old/tfrecords --data_dir data/old
txl prepare --dataset text --train 'a/*.txt.gz' --valid b.txt --level subword
txl prepare --dataset text --train 'gs://a/*.txt' --level word --data_dir \
    gs://a/records --runner DataflowRunner --beam_options project=p,region=r,temp_location=gs://a/t
"""

import dataclasses
import itertools
import os
import time
from pathlib import Path
from typing import Any

from absl import flags

from txl_tf.data.files import is_remote, join_path
from txl_tf.data.text.learning import LEVELS_OF_OPTION
from txl_tf.data.text.subwords import DEFAULT_SYMBOLS
from txl_tf.preparation.options import (
    DATASETS,
    DATASETS_OF_OPTION,
    RELEASE,
    TEXT,
    PrepareOptions,
)
from txl_tf.preparation.prepare import prepare, print_summary
from txl_tf.programs.cli.config_flags import define_field_flag
from txl_tf.programs.cli.flags import (
    define_flag,
    define_second_name,
    parse_integers,
    refuse_flags,
)
from txl_tf.programs.cli.legacy_flags import (
    PREPARATION_FLAGS,
    define_legacy_flags,
    describe_legacy_flags,
)
from txl_tf.programs.cli.pipeline_flags import (
    check_pipeline_flags,
    define_pipeline_flags,
    make_runner,
)
from txl_tf.programs.cli.program import program
from txl_tf.quiet_start import check_backend


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    for field in dataclasses.fields(PrepareOptions):
        rules: dict[str, Any] = {"required": True} if field.name == "dataset" else {}
        if field.name == "num_workers":
            rules["default"] = os.cpu_count() or 1
        datasets = DATASETS_OF_OPTION.get(field.name, ())
        before = f"For {', '.join(datasets)}: " if 0 < len(datasets) <= len(DATASETS) // 2 else ""
        define_field_flag(options, field.name, field, before=before, **rules)
    define_second_name(options, "num_shuffle", "num_shuffles")  # of 2019
    define_pipeline_flags(options)
    temp_help = "Folder for temporary files, shared by all workers. [default: inside --data_dir]"
    define_flag(options, "temp_dir", str, None, temp_help, is_path=True)
    define_legacy_flags(options, PREPARATION_FLAGS)
    return options


@program(__doc__, define_flags)
def main(options: flags.FlagValues) -> None:
    """Creates the data set that the flags describe, and prints a summary."""
    check_backend()  # tensorflow_text imports Keras
    # TensorFlow splits words and subwords on the CPU; it should not take the memory of a GPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    made = make_options(options)
    if made.dataset == RELEASE:
        from txl_tf.release.records import convert_records

        print_summary(convert_records(made.raw_dir, made.data_dir, overwrite=made.overwrite))
        return
    start = time.monotonic()
    if options.runner:
        runner = make_runner(options)
        from txl_tf.apps.beam.records_pipeline import prepare_with_workers

        temp_dir = options.temp_dir or made.data_dir
        info = prepare_with_workers(made, runner, temp_dir, piece_bytes=options.piece_bytes)
    else:
        info = prepare(made)
    if info:
        print_summary(info)
        print(f"Wrote `{made.data_dir}` in {time.monotonic() - start:.1f} seconds.")


def make_options(options: flags.FlagValues) -> PrepareOptions:
    """Returns the checked flags as options, and prints the replacements of flags of 2019."""
    check_flags(options)
    cutoffs = None if options.cutoffs is None else check_cutoffs(options)
    for line in describe_legacy_flags(options, PREPARATION_FLAGS):
        print(line)
    raw_dir, data_dir = choose_folders(options)
    values: dict[str, Any] = {
        field.name: options[field.name].value for field in dataclasses.fields(PrepareOptions)
    }
    for name, value in values.items():
        values[name] = tuple(value) if isinstance(value, list) else value
    if options.vocab_file:
        given = options.vocab_file
        values["vocab_file"] = given if is_remote(given) else Path(given)
    values |= {"raw_dir": raw_dir, "data_dir": data_dir, "cutoffs": cutoffs}
    return PrepareOptions(**values)


def check_flags(options: flags.FlagValues) -> None:
    """Checks that the given flags apply to the data set, and do not contradict each other."""
    given = {name for name in options if options[name].present}
    dataset, level, vocab_file = options.dataset, options.level, options.vocab_file or ""
    fraction, runner = options.valid_fraction, options.runner
    where = f"Received: --dataset={dataset}"
    for name, datasets in DATASETS_OF_OPTION.items():
        is_refused = name in given and dataset not in datasets
        _refuse(is_refused, f"flag --{name} is for {' and '.join(datasets)}. {where}")
    is_byte = dataset == "enwik8" or (dataset == TEXT and level == "byte")
    if is_byte and options.encoding_errors != "strict":
        refuse_flags(options, "encoding_errors", reason="at level byte, which takes any bytes")
    if level == "char" and "unknown" in given:
        text = f"--unknown must be one character with --level=char. Received: {options.unknown}"
        _refuse(len(options.unknown) != 1, text)
    for name, levels in LEVELS_OF_OPTION.items():
        is_refused = name in given and level not in levels
        text = f"flag --{name} is for --level={' or '.join(levels)}. Received: --level={level}"
        _refuse(is_refused, text)
    _refuse(dataset == TEXT and not options.train, "--dataset=text needs --train")
    text = f"--dataset={RELEASE} needs --raw_dir, the folder of its records"
    _refuse(dataset == RELEASE and not options.raw_dir, text)
    if fraction is not None:
        text = f"--valid_fraction must be between 0 and 1. Received: {fraction}"
        _refuse(not 0 < fraction < 1, text)
        _refuse(options.valid, "--valid and --valid_fraction cannot be used together")
        _refuse(runner, "--valid_fraction is for one machine; with --runner, pass --valid")
    has_both = "documents" in given and options.document_separator is not None
    _refuse(has_both, "--documents and --document_separator cannot be used together")
    for name in sorted(given & {"min_count", "max_symbols", "special"}):
        _refuse(vocab_file, f"flag --{name} is for a new vocabulary, not for --vocab_file")
    for name in sorted(given & {"lower_case", "line_end"}):
        text = f"flag --{name} has no effect: --vocab_file determines it"
        _refuse(vocab_file.endswith(".json"), text)
    check_pipeline_flags(options, ("temp_dir",))
    if runner:
        _refuse(dataset != TEXT, f"--runner is for --dataset=text. {where}")
        text = (
            "--runner with --level=subword needs --vocab_file: subwords are learned on one machine"
        )
        _refuse(level == "subword" and not vocab_file, text)
        text = "--num_workers is for one machine; with --runner, use --beam_options"
        _refuse("num_workers" in given, text)


def _refuse(is_wrong: object, reason: str) -> None:
    if is_wrong:
        raise flags.Error(reason)


def check_cutoffs(options: flags.FlagValues) -> tuple[int, ...]:
    """Returns the cutoffs, checked as far as possible without the vocabulary."""
    cutoffs = parse_integers("cutoffs", options.cutoffs)
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
    """Returns the folder of the raw files and the folder of the records.

    On a command line of the 2019 release, --data_dir is the folder of the texts, and records are
    written to `tfrecords` in it; a printed line says so.
    """
    raw_dir, data_dir = options.raw_dir, options.data_dir
    is_release = any(options[flag.name].present for flag in PREPARATION_FLAGS)
    if is_release and data_dir and not raw_dir and options.dataset in DATASETS_OF_OPTION["raw_dir"]:
        raw_dir, data_dir = data_dir, join_path(data_dir, "tfrecords")
        print(
            f"As in the 2019 release, texts are read from `{raw_dir}` and records are written "
            f"to `{data_dir}`; with --raw_dir, records are written to --data_dir itself."
        )
    if is_remote(raw_dir or ""):
        raise flags.Error(f"--raw_dir must be a local folder. Received: {raw_dir}")
    return Path(raw_dir or f"raw/{options.dataset}"), data_dir or f"data/{options.dataset}"
