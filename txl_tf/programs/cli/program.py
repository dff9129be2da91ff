"""Runs a command-line program: parses its flags, and reports errors as one line and a status."""

import contextlib
import io
import os
import platform
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import distributions

from absl import flags

from txl_tf.errors import StoppedError, UserError, explain
from txl_tf.programs.cli.flags import OUTPUT, define_flag, format_help, parse_flags
from txl_tf.progress import QUIET
from txl_tf.quiet_start import find_backend, hide_remarks
from txl_tf.version import __version__

Main = Callable[[flags.FlagValues], int | None]  # may return an exit status

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
_VERSION_HELP = "--version prints the versions of the packages and the devices, for a bug report."
EXIT_BROKEN_PIPE = 141  # the status that a shell gives to a program ended by SIGPIPE
_PACKAGES = ("tensorflow", "tensorflow-text", "tensorflow-tpu", "keras", "jax", "numpy", "protobuf")


def program(
    description: str | None,
    define_flags: Callable[[], flags.FlagValues],
    *,
    positional: str | None = None,
) -> Callable[[Main], Callable[..., int]]:
    """Makes a program of the decorated function, which is called with the parsed flags.

    The result is a function of a command line, by default that of the process, and returns the exit
    status. `define_flags` returns the flags before parsing; the other arguments are those of
    `run_program`.
    """

    def decorate(main: Main) -> Callable[..., int]:
        def run(argv: list[str] = sys.argv) -> int:
            """Runs the program on a command line and returns its exit status."""
            return run_program(description, define_flags(), main, argv, positional=positional)

        return run

    return decorate


def run_program(
    description: str | None,
    options: flags.FlagValues,
    main: Main,
    argv: list[str],
    *,
    positional: str | None = None,
) -> int:
    """Parses the command line, runs a program, and prints its errors as one line.

    `main` is called with the parsed flags. `description`, usually the docstring of a module (`None`
    under `python -OO`), begins the output of `--help`. The other arguments are those of
    `parse_flags`.

    Returns:
        The exit status: the one that `main` returns, or 0; 1 if the program failed; 2 if the
        command line is wrong; 130 if it was interrupted from the keyboard; 141 if the reader of its
        output closed the pipe; or the status of a `StoppedError`.
    """
    start_in_utf8(argv)
    name = os.path.basename(argv[0])
    text = "Show no progress bars."
    define_flag(options, "quiet", bool, False, text, section=OUTPUT)
    text = "Show the messages of TensorFlow, and the traceback of an error."
    define_flag(options, "verbose", bool, False, text, section=OUTPUT)
    try:
        if {"--help", "-h", "--helpfull", "--helpshort"} & set(argv[1:]):
            listed = format_help(options, full="--helpfull" in argv)
            others = f"Arguments without a flag are for --{positional}. " if positional else ""
            print(f"{description or name}\n\n{listed}\n\n{others}{_VERSION_HELP}")
            return 0
        if "--version" in argv[1:]:
            hide_remarks()
            print("\n".join(_describe_versions()))
            return 0
        parse_flags(options, argv, positional=positional)
        _set_environment(options)
        try:
            return main(options) or 0
        except (flags.Error, UserError, OSError):
            if options.verbose:
                traceback.print_exc()
            raise
    except flags.Error as error:
        return print_failure(name, error, EXIT_USAGE)
    except BrokenPipeError:
        return drop_output()
    except UserError as error:
        return print_failure(name, error, EXIT_FAILED)
    except OSError as error:
        place = f"`{os.fspath(error.filename)}`: " if isinstance(error.filename, str) else ""
        return print_failure(name, f"{place}{explain(error)}", EXIT_FAILED)
    except StoppedError as stop:
        return print_failure(name, stop, stop.status)
    except KeyboardInterrupt:
        return print_failure(name, "interrupted", EXIT_INTERRUPTED)


def start_in_utf8(argv: list[str]) -> None:
    """Sets up the output; starts the process again in UTF-8 mode if the locale is not in UTF-8.

    Otherwise Python and TensorFlow would encode paths differently, and texts could not be printed.
    The process is not restarted if `argv` is not its own command line.
    """
    if argv is sys.argv and sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Also write each line to a pipe immediately; the terminal may lack some characters.
        sys.stdout.reconfigure(line_buffering=True, errors="replace")


def drop_output() -> int:
    """Discards further output after its reader, such as `head`, has ended; returns the status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE


def _set_environment(options: flags.FlagValues) -> None:
    """Passes the shared flags to TensorFlow, which is loaded later, and to progress bars."""
    if options.quiet:
        os.environ[QUIET] = "1"
    if options.verbose:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"
    hide_remarks()
    if "threads" in options and options.threads:
        os.environ["TF_NUM_INTRAOP_THREADS"] = str(options.threads)


def print_failure(name: str, error: object, status: int) -> int:
    """Prints an error on one line, and returns the status."""
    with contextlib.suppress(BrokenPipeError):
        print(f"{name}: " + " ".join(str(error).split()), file=sys.stderr)
    return status


def _describe_versions() -> list[str]:
    """Returns lines with the versions of the packages, Keras' backend and the devices."""
    import tensorflow as tf

    gpus = [
        tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    installed = [found for found in distributions() if found.name in _PACKAGES]
    return [
        f"txl_tf {__version__}",
        f"Python {platform.python_version()}, {platform.platform()}",
        ", ".join(sorted(f"{found.name} {found.version}" for found in installed)),
        f"backend of Keras: {find_backend()[0]}",
        f"devices: {os.cpu_count()} CPU cores, {', '.join(gpus) or 'no GPU'}",
    ]
