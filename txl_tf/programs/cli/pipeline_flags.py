"""The flags of programs that can run as an Apache Beam pipeline."""

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from absl import flags

from txl_tf.apps.beam.file_ranges import PIECE_BYTES
from txl_tf.errors import require_extra
from txl_tf.programs.cli.flags import define_flag

if TYPE_CHECKING:
    from txl_tf.apps.beam.runner import Runner


def define_pipeline_flags(options: flags.FlagValues) -> None:
    """Defines the flags of the runner."""
    runner_help = (
        "Apache Beam runner that distributes the work to many workers, such as DirectRunner, "
        "FlinkRunner, SparkRunner or DataflowRunner. [default: this process does it]"
    )
    define_flag(options, "runner", str, None, runner_help)
    options_help = "Options of the runner: NAME=VALUE, separated by commas, without dashes."
    define_flag(options, "beam_options", list, [], options_help)
    piece_help = "With --runner: bytes of text that a worker reads at a time."
    define_flag(options, "piece_bytes", int, PIECE_BYTES, piece_help, lower_bound=1)


def check_pipeline_flags(options: flags.FlagValues, others: Collection[str] = ()) -> None:
    """Checks that flags of pipelines, and `others`, are given only with a runner."""
    for name in ("beam_options", "piece_bytes", *others):
        if options[name].present and not options.runner:
            raise flags.Error(f"--{name} needs --runner")


def make_runner(options: flags.FlagValues) -> "Runner":
    """Returns the runner that the flags describe."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # Beam warns about storage clients that are not installed
    try:
        with require_extra("beam", "--runner"):
            from txl_tf.apps.beam.runner import Runner
    finally:
        logging.disable(level)
    return Runner(options.runner, tuple(options.beam_options))
