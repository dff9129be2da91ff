"""Flags of the 2019 release's programs that have no effect here.

They are accepted so that command lines of the release run. A printed line names the replacement.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from absl import flags

from txl_tf.programs.cli.flags import define_flag, write_value

_HELP = "Accepted so that command lines of the 2019 release run; has no effect."


class LegacyFlag(NamedTuple):
    """An accepted flag, its default in the release, and its replacement."""

    name: str
    kind: type
    default: Any
    instead: str


_UNUSED = "not needed, and not used by the release either"
_HOSTS = "not needed, as TF_CONFIG names the hosts, and a TPU knows its own"
_RECORDS = "not needed, as the records describe themselves"
_CUT_LATER = "not needed, as training chooses the batch size and the segment length"

TRAINING_FLAGS = (
    LegacyFlag("num_hosts", int, 1, _HOSTS),
    LegacyFlag("num_host", int, 1, _HOSTS),
    LegacyFlag("num_core_per_host", int, 8, "all are used; train_gpu.py --num_gpus limits GPUs"),
    LegacyFlag(
        "use_tpu", bool, True, "train_tpu.py trains on TPUs, train_gpu.py on GPUs or the CPU"
    ),
    LegacyFlag("master", str, None, "--tpu of train_tpu.py takes a name or an address"),
    LegacyFlag("track_mean", bool, True, "not needed, as the logged loss is always a mean"),
    LegacyFlag("record_info_dir", str, None, _RECORDS),
    LegacyFlag("corpus_info_path", str, None, _RECORDS),
    LegacyFlag("do_test", bool, False, "--do_eval --eval_split=test evaluates on the test split"),
)
PREPARATION_FLAGS = (
    LegacyFlag("tgt_len", int, 70, _CUT_LATER),
    LegacyFlag("per_host_train_bsz", int, 60, _CUT_LATER),
    LegacyFlag("per_host_valid_bsz", int, 60, _CUT_LATER),
    LegacyFlag("per_host_test_bsz", int, 0, f"{_CUT_LATER}; all splits are made at once"),
    LegacyFlag("num_core_per_host", int, 8, "not needed, as records serve any number of cores"),
    LegacyFlag("num_procs", int, 1, "all processors are used; --num_workers limits them"),
    LegacyFlag("num_passes", int, 10, "not needed, as each epoch starts at a different offset"),
    LegacyFlag("max_batch", int, -1, _UNUSED),
    LegacyFlag("debug", bool, False, _UNUSED),
    LegacyFlag("use_tpu", bool, True, "not needed, as the same records serve GPUs and TPUs"),
)


def define_legacy_flags(options: flags.FlagValues, legacy: tuple[LegacyFlag, ...]) -> None:
    """Defines the flags of `TRAINING_FLAGS` or `PREPARATION_FLAGS`."""
    for flag in legacy:
        define_flag(options, flag.name, flag.kind, flag.default, _HELP, rare=True)


def describe_legacy_flags(
    options: flags.FlagValues, legacy: tuple[LegacyFlag, ...]
) -> Iterator[str]:
    """Yields a line for each of these flags that was given on the command line."""
    for flag in legacy:
        if options[flag.name].present:
            yield f"--{flag.name}={write_value(options[flag.name].value)}: {flag.instead}."
