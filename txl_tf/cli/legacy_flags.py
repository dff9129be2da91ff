"""Flags of the 2019 release's programs that have no effect here.

They are accepted so that its command lines run, and a line says what to use instead.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from absl import flags

from txl_tf.cli.flags import define_flag

_HELP = "Accepted so that command lines of the 2019 release run; has no effect."


class LegacyFlag(NamedTuple):
    """A flag that is accepted, and the end of the line that says what to use instead.

    Attributes:
        name: Without the dashes.
        kind: Its type.
        default: The release's.
        instead: What to use instead, or why nothing is needed.
    """

    name: str
    kind: type
    default: Any
    instead: str


_UNREAD = "not needed, the release did not read it either"
_HOSTS = "not needed, TF_CONFIG names the hosts, or the TPU knows its own"
_CUT_LATER = "not needed, records know no batch and no segment length; training cuts them"

TRAINING_FLAGS = (
    LegacyFlag("num_hosts", int, 1, _HOSTS),
    LegacyFlag("num_host", int, 1, _HOSTS),
    LegacyFlag(
        "num_core_per_host",
        int,
        8,
        "not needed, all GPUs or cores are used; --num_gpus takes fewer",
    ),
    LegacyFlag(
        "use_tpu", bool, True, "train_tpu.py trains on TPUs, train_gpu.py on GPUs or the CPU"
    ),
    LegacyFlag("master", str, None, "--tpu of train_tpu.py takes a name or an address"),
    LegacyFlag("track_mean", bool, True, "not needed, the loss that is logged is always the mean"),
    LegacyFlag("do_test", bool, False, "--do_eval --eval_split=test evaluates on the test split"),
)
PREPARATION_FLAGS = (
    LegacyFlag("tgt_len", int, 70, _CUT_LATER),
    LegacyFlag("per_host_train_bsz", int, 60, _CUT_LATER),
    LegacyFlag("per_host_valid_bsz", int, 60, _CUT_LATER),
    LegacyFlag("per_host_test_bsz", int, 0, f"{_CUT_LATER}; all splits are made at once"),
    LegacyFlag(
        "num_core_per_host", int, 8, "not needed, the same records serve any number of cores"
    ),
    LegacyFlag(
        "num_procs", int, 1, "not needed, all processors are used; --num_workers takes fewer"
    ),
    LegacyFlag(
        "num_passes", int, 10, "not needed, each epoch of training starts at another offset instead"
    ),
    LegacyFlag("num_shuffle", int, 4, "its name is --num_shuffles here; it is for lm1b"),
    LegacyFlag("max_batch", int, -1, _UNREAD),
    LegacyFlag("debug", bool, False, _UNREAD),
    LegacyFlag("use_tpu", bool, True, "not needed, the same records serve GPUs and TPUs"),
)


def define_legacy_flags(options: flags.FlagValues, legacy: tuple[LegacyFlag, ...]) -> None:
    """Defines the flags of a table."""
    for flag in legacy:
        define_flag(options, flag.name, flag.kind, flag.default, _HELP)


def describe_legacy_flags(
    options: flags.FlagValues, legacy: tuple[LegacyFlag, ...]
) -> Iterator[str]:
    """Yields a line for each flag of a table that was given."""
    for flag in legacy:
        if options[flag.name].present:
            value = options[flag.name].value
            text = str(value).lower() if flag.kind is bool else value
            yield f"--{flag.name}={text}: {flag.instead}."
