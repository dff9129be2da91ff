"""The flags that programs share: the run, its weights and records, and sampling.

Without a flag for the run or data set, programs use the only one under `runs/` or `data/`, and
print a line that says so.
"""

import os
import shlex
import sys
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from txl_tf.config import (
    DEFAULT_TEMPERATURE,
    DEFAULT_TOP_K,
    KERNEL_DTYPES,
    MAX_SAMPLING_SEED,
)
from txl_tf.data.files import check_folder, is_remote
from txl_tf.data.records.format import JSON_NAME
from txl_tf.data.records.reading import Records, open_records
from txl_tf.data.records.writing import holds_records
from txl_tf.errors import UserError, explain_errors, require_extra
from txl_tf.pretrained import DEFAULT, find_pretrained, is_pretrained
from txl_tf.programs.cli.flags import OUTPUT, define_flag, define_second_name, suggest
from txl_tf.quiet_start import check_backend
from txl_tf.runs.folder import CONFIG_NAME, find_run_data, read_run_config

if TYPE_CHECKING:
    from txl_tf.language_model import LanguageModel

CHECKPOINT_HELP = (
    "Checkpoint to read: newest; best, by the evaluations during training; a step; a name in the "
    "run folder; or a path. [default: newest]"
)


RUNS, DATA_SETS = "runs", "data"  # folders in which runs and data sets are searched
_MAX_LISTED = 10  # in an error message


def define_run_flag(options: flags.FlagValues, *, multiple: bool = False) -> None:
    """Defines `--run`, the run to read; `choose_run` sets its default."""
    text = f"Folder of the run, or {DEFAULT}, the model that comes with the package."
    text += f" [default: the only run under {RUNS}/; {DEFAULT} if there is none]"
    define_flag(options, "run", str, None, text, is_path=True, multiple=multiple)
    define_second_name(options, "model_dir", "run")


def define_run_flags(options: flags.FlagValues) -> None:
    """Defines the flags of the run and its checkpoint."""
    define_run_flag(options)
    define_checkpoint_flag(options)
    define_threads_flag(options)


def define_threads_flag(options: flags.FlagValues) -> None:
    """Defines `--threads`, which `run_program` passes to TensorFlow."""
    help_text = "Number of CPU threads per operation. [default: the number of cores]"
    define_flag(options, "threads", int, None, help_text, lower_bound=1, section=OUTPUT)


def define_checkpoint_flag(options: flags.FlagValues) -> None:
    """Defines `--checkpoint`, whose value `find_checkpoint` looks up."""
    define_flag(options, "checkpoint", str, None, CHECKPOINT_HELP, is_path=True)


def choose_run(options: flags.FlagValues, *, or_saved_model: bool = False) -> None:
    """Replaces the value of `--run`, or its default, with the folder of the run, and checks it.

    Does not load TensorFlow.
    """
    check_backend()
    is_group = isinstance(options["run"], flags.MultiFlag)
    given = options.run or _find_default_run()
    found = [find_pretrained(run) for run in (given if options.run and is_group else [given])]
    for run in found:
        with explain_errors("--run", UnicodeError):
            run.encode()  # as TensorFlow does
        check_run(run, or_saved_model=or_saved_model)
    options["run"].value = found if is_group else found[0]


def open_chosen_run(
    options: flags.FlagValues, run: str | None = None, **others: Any
) -> "LanguageModel":
    """Opens the run that `choose_run` chose, or `run`, with the weights that the flags select.

    Loads TensorFlow. `others` are arguments of `txl_tf.language_model.open_run`, and override the
    flags.
    """
    from txl_tf.language_model import open_run

    names = ("checkpoint", "use_ema", "precision")
    weights: dict[str, Any] = {name: options[name].value for name in names if name in options}
    return open_run(run or options.run, **(weights | others))


def warn_of_no_memory(lm: "LanguageModel", run: str) -> None:
    """Prints a warning if the model of a run generates without memory."""
    if not lm.span.mem_len and lm.config.can_have_memory:  # others generate nothing
        print(
            f"warning: `{run}` evaluates with mem_len 0: each new token will see only the one "
            "before",
            file=sys.stderr,
        )


def _find_default_run() -> str:
    """Returns and prints the only run, or the model that comes with the package."""
    found = find_only("run", "run", f"{RUNS}/*/{CONFIG_NAME}")
    reason = f"the model that comes with the package, as there is no run under {RUNS}/"
    say_default("run", found or DEFAULT, f"the only run under {RUNS}/" if found else reason)
    return found or DEFAULT


def find_only(flag: str, noun: str, *patterns: str) -> str | None:
    """Returns the only folder that holds a file matching the patterns; `None` if there is none.

    Raises:
        flags.Error: If there are several. The message lists them.
    """
    found = sorted({os.path.dirname(path) for pattern in patterns for path in glob(pattern)})
    if len(found) > 1:
        more = f" and {len(found) - _MAX_LISTED} more" if len(found) > _MAX_LISTED else ""
        raise flags.Error(
            f"--{flag} must be given, as there are several {noun}s: "
            f"{', '.join(found[:_MAX_LISTED])}{more}"
        )
    return found[0] if found else None


def choose_data_set() -> str:
    """Returns and prints the default of `data_dir`, which is the only data set."""
    found = find_only_data_set()
    say_default("data_dir", found, f"the only data set under {DATA_SETS}/")
    return found


def find_only_data_set() -> str:
    """Returns the folder of the only data set.

    Raises:
        flags.Error: If there are several (the message lists them) or none.
    """
    places = (f"{DATA_SETS}/*", f"{DATA_SETS}/*/tfrecords")  # the second as in the 2019 release
    found = find_only("data_dir", "data set", *(f"{place}/{JSON_NAME}" for place in places))
    if found is None:
        raise flags.Error(
            f"--data_dir must be given: there is no data set under {DATA_SETS}/. To make one: "
            "txl prepare --dataset pydoc, or --dataset text --train FILES "
            f"--valid_fraction .05 --data_dir {DATA_SETS}/NAME"
        )
    return found


def say_default(flag: str, value: str, reason: str) -> None:
    """Prints the default value of a flag that was not given."""
    print(f"--{flag}={shlex.quote(value)}: {reason}.", file=sys.stderr)


def choose_out(options: flags.FlagValues, run: str, name: str) -> str:
    """Returns the folder for figures: the value of `--out`, or by default one in the run folder.

    Raises:
        flags.Error: If `--out` must be given.
        UserError: If Matplotlib is not installed, or the folder cannot be one of this machine.
    """
    if options.out is None and is_pretrained(run):
        raise flags.Error(f"--out must be given: nothing is written into the package, `{run}`")
    check_figures()
    out: str = options.out or os.path.join(run, name)
    if is_remote(out):
        raise UserError(f"`--out` must be a folder on this machine. Received: {out}")
    check_folder(out)
    return out


def check_figures() -> None:
    """Checks that figures can be drawn.

    Raises:
        UserError: If Matplotlib is not installed.
    """
    with require_extra("lab", "a figure"):
        import matplotlib  # noqa: F401


def check_run(path: str, *, or_saved_model: bool = False) -> None:
    """Checks that a local path is a run folder, before TensorFlow is loaded."""
    is_saved_model = or_saved_model and os.path.exists(os.path.join(path, "saved_model.pb"))
    if not is_remote(path) and not is_saved_model:
        read_run_config(path)


def check_texts(paths: list[str]) -> None:
    """Checks that the arguments of a program that reads text files are not runs."""
    for path in paths:
        if os.path.exists(os.path.join(path, CONFIG_NAME)):
            raise flags.Error(f"texts are expected; --run names the run. Received: {path}, a run")


def check_source(path: str) -> None:
    """Checks that a local path of the 2019 release exists, before TensorFlow is loaded."""
    check_backend()
    if not is_remote(path) and not os.path.exists(path) and not os.path.exists(f"{path}.index"):
        raise UserError(f"`{path}` does not exist")


def define_records_flag(options: flags.FlagValues) -> None:
    """Defines `--data_dir`, the records that `open_run_records` opens."""
    help_text = "Folder of the records. [default: the run's]"
    define_flag(options, "data_dir", str, None, help_text, is_path=True)


def open_run_records(run: str, data_dir: str | None = None, split: str | None = None) -> Records:
    """Opens the records in `data_dir`, or else those last given to the run, or those in its folder.

    For the model that comes with the package, the default is the only data set. An unknown split is
    reported before missing records are.
    """
    data_dir = data_dir or find_run_data(run)
    if data_dir is None and split is not None:
        _check_split(split)
    if data_dir is None and is_pretrained(run):
        data_dir = choose_data_set()
    if data_dir is None:
        raise UserError(
            f"`{run}` holds no records and has saved no location of its data: pass "
            "--data_dir, the folder of the records"
        )
    return open_data_set(data_dir)


def _check_split(split: str) -> None:
    """Checks the name of a split before its records are known."""
    from txl_tf.preparation.corpora import SPLITS  # takes time

    if split not in SPLITS:
        hint = suggest(split, SPLITS)
        raise flags.Error(
            f"--split must be {', '.join(SPLITS)}, or another split of records that --data_dir "
            f"names. Received: {split}{hint and f'.{hint}'}"
        )


def open_data_set(data_dir: str) -> Records:
    """Opens a data set; for one of the 2019 release, the error says how to convert it."""
    if not is_remote(data_dir) and not holds_records(data_dir):
        for place in (Path(data_dir), Path(data_dir, "tfrecords")):
            if any(place.glob("record_info-*.json")):
                raise UserError(
                    f"`{data_dir}` holds records of the 2019 release. Convert them once: "
                    f"txl prepare --dataset release2019 --raw_dir {shlex.quote(data_dir)} "
                    "--data_dir NEW_DIR"
                )
    return open_records(data_dir)


def define_ema_flag(options: flags.FlagValues) -> None:
    """Defines `--use_ema`, which chooses between the weights and their average."""
    help_text = "Use the averaged weights if the checkpoint has them."
    define_flag(options, "use_ema", bool, True, help_text)


def define_precision_flag(options: flags.FlagValues) -> None:
    """Defines `--precision`, the dtype of the weights."""
    help_text = (
        "Dtype of the kernels and tables. Narrower ones take less memory and generate faster. int8 "
        "has one scale per output; with bfloat16, texts are also read in bfloat16."
    )
    define_flag(options, "precision", str, "float32", help_text, choices=KERNEL_DTYPES)


def define_mask_flag(options: flags.FlagValues) -> None:
    """Defines `--mask_empty_memory`."""
    help_text = (
        "Mask the empty memory, so that a text sees nothing before its first token. The 2019 "
        "release attends to the zeros in it."
    )
    define_flag(options, "mask_empty_memory", bool, True, help_text)


def define_candidate_flags(
    options: flags.FlagValues, *, temperature: float = DEFAULT_TEMPERATURE
) -> None:
    """Defines `--temperature` and `--top_k`."""
    help_text = (
        "Sampling temperature: values below 1 favor likely tokens; 0 always takes the most likely "
        "one."
    )
    define_flag(options, "temperature", float, temperature, help_text, lower_bound=0)
    help_text = "Sample from this many of the most likely tokens; 0 for all."
    define_flag(options, "top_k", int, DEFAULT_TOP_K, help_text, lower_bound=0)


def define_seed_flags(options: flags.FlagValues, *, samples: int) -> None:
    """Defines `--seed`, the first seed, and `--samples`, the number of texts."""
    help_text = "Seed of the random numbers; the same seed gives the same text."
    define_flag(options, "seed", int, 0, help_text, lower_bound=0, upper_bound=MAX_SAMPLING_SEED)
    help_text = "Number of texts; their seeds count up from --seed."
    define_flag(options, "samples", int, samples, help_text, lower_bound=1)


def check_seeds(options: flags.FlagValues) -> None:
    """Checks that the last seed of `define_seed_flags` is not too large."""
    if options.seed + options.samples - 1 > MAX_SAMPLING_SEED:
        raise flags.Error(
            f"the last seed, --seed + --samples - 1, must be an integer <= {MAX_SAMPLING_SEED}. "
            f"Received: --seed={options.seed} --samples={options.samples}"
        )


def check_out_files(options: flags.FlagValues, *names: str) -> None:
    """Checks that the local files that flags name can be written."""
    for name in names:
        path = options[name].value
        if path is None or is_remote(path):
            continue
        if os.path.isdir(path) or not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            raise UserError(f"--{name} must name a file in an existing folder. Received: {path}")
