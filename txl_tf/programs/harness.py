r"""Runs EleutherAI's lm-evaluation-harness with the model `txl_tf`.

txl harness --model txl_tf --model_args run=pydoc \
    --tasks lambada_openai
"""

import importlib.util
import os
import sys

from txl_tf.errors import name_install_command, require_extra
from txl_tf.programs.cli.program import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    drop_output,
    print_failure,
    start_in_utf8,
)
from txl_tf.quiet_start import check_backend, hide_remarks


def main(argv: list[str] = sys.argv) -> int:
    """Runs the harness on a command line of `lm_eval`; without a subcommand, of `lm_eval run`.

    Returns the exit status: 0 on success, 1 after an error of the harness or the model, 2 if the
    command line is wrong, 130 after a keyboard interrupt, 141 if the reader of the output has
    closed the pipe.
    """
    start_in_utf8(argv)
    try:
        status = run_harness(argv)
        sys.stdout.flush()  # argparse ignores the error of a closed pipe
    except BrokenPipeError:
        return drop_output()
    return status


def run_harness(argv: list[str]) -> int:
    """Runs the harness, or describes it if it is not installed, and returns the exit status."""
    is_installed = importlib.util.find_spec("lm_eval") is not None
    if not is_installed and {"-h", "--help"} & set(argv):
        print(
            f"{__doc__}\nThe flags are those of lm_eval, which shows them here once it is "
            f"installed:\n{name_install_command('harness')}"
        )
        return 0
    name = os.path.basename(argv[0])
    previous, sys.argv = sys.argv, argv  # the harness reads its arguments there
    try:
        check_backend()
        hide_remarks()
        with require_extra("harness", "the harness"):
            from lm_eval.__main__ import cli_evaluate

            import txl_tf.apps.lm_eval  # noqa: F401  registers the model
        cli_evaluate()
    except ValueError as error:  # a `UserError`, or an error of the harness itself
        return print_failure(name, error, EXIT_FAILED)
    except SystemExit as end:  # raised by argparse
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return print_failure(name, "interrupted", EXIT_INTERRUPTED)
    finally:
        sys.argv = previous
    return 0
