"""What the programs of the soak share: a table of outcomes, the faults, and the exit status."""

import os
import sys
import tempfile
from pathlib import Path

from absl import flags

from benchmarks.tables import format_row, format_table
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program


def run_soak(description, soak, argv, **defined):
    """Runs a program on a command line and returns its exit status, which is not 0 after a fault.

    Args:
        description: The beginning of `--help`.
        soak: Yields what came of each thing that it tries, from an empty folder and the parsed
            flags: a name, a dictionary of the cells of its row by column, and a text for each
            fault. The row and its first faults are printed at once.
        argv: The command line.
        **defined: The default and the help of each flag. The default of a list is its choices.
    """
    options = flags.FlagValues()
    for name, (default, text) in defined.items():
        limits = {int: {"lower_bound": 1}, float: {"lower_bound": 0}, list: {"choices": default}}
        define_flag(options, name, type(default), default, text, **limits[type(default)])

    def print_rows(options):
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        n_faults, header = 0, []
        with tempfile.TemporaryDirectory() as folder:
            for name, cells, faults in soak(Path(folder), options):
                if not header:
                    header = ["what", *cells]
                    print(format_table(header, []))
                print(format_row([name, *cells.values()]))
                for fault in faults[:20]:
                    print(f"{name}: {fault}", file=sys.stderr)
                n_faults += len(faults)
        if n_faults:
            raise UserError(f"{n_faults} faults")

    return run_program(description, options, print_rows, argv)
