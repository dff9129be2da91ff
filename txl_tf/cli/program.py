"""What the command-line programs share: flags that answer at once, errors of one line."""

import io
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from absl import flags

from txl_tf.cli.flag_hints import suggest_flags
from txl_tf.cli.quiet_start import quiet_start
from txl_tf.config.base import MAX_INTEGER
from txl_tf.errors import StoppedError, UserError

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
EXIT_BROKEN_PIPE = 141  # as the shell says of what SIGPIPE ends


def run_program(
    description: str,
    options: flags.FlagValues,
    main: Callable[[flags.FlagValues], None],
    argv: list[str],
    *,
    positional: str | None = None,
    rest: str | None = None,
) -> int:
    """Reads the command line, runs a program, and turns its errors into a line.

    Args:
        description: what `--help` says first.
        options: the flags, defined and not yet read.
        main: the program; it gets the flags that were read.
        argv: the command line.
        positional: the flag whose value may stand by itself, before the others.
        rest: as `parse_flags`'s.

    Returns:
        The exit status: 0; 1 if the program failed; 2 if the command line is wrong; 130 if it
        was interrupted from the keyboard; 141 if nobody reads its output any more; else that of a
        `StoppedError`.
    """
    name = os.path.basename(argv[0])
    if {"--help", "-h", "--helpfull", "--helpshort"} & set(argv[1:]):
        print(f"{description}\n\n{options.get_help()}")
        return 0
    try:
        parse_flags(options, argv, positional=positional, rest=rest)
    except flags.Error as error:
        return _fail(name, error, EXIT_USAGE)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # lines come at once through a pipe too
    try:
        # tensorflow's remarks on the machine would bury the program's own lines.
        with quiet_start():
            main(options)
    except flags.Error as error:
        return _fail(name, error, EXIT_USAGE)
    except BrokenPipeError:  # who read the output has enough, as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except (UserError, OSError) as error:
        return _fail(name, error, EXIT_FAILED)
    except StoppedError as stop:
        return _fail(name, stop, stop.status)
    except KeyboardInterrupt:
        return _fail(name, "interrupted", EXIT_INTERRUPTED)
    return 0


def define_flag(
    options: flags.FlagValues,
    name: str,
    kind: type,
    default: Any,
    text: str,
    *,
    is_path: bool = False,
    **rules: Any,
) -> None:
    """Defines a flag.

    Args:
        options: where.
        name: without the dashes.
        kind: `str`, `int`, `float`, `bool`, `list` (texts separated by commas) or `tuple` (texts;
            the flag may be given more than once).
        default: its value if it is not given.
        text: what `--help` says.
        is_path: whether it names files or folders. An empty value is refused then: most often it
            is a shell variable that is not set, and would stand for the current folder.
        **rules: absl's: `required`, `lower_bound`, `upper_bound`. Without the last one,
            `parse_flags` holds integers to `MAX_INTEGER`.
    """
    kinds: dict[type, Any] = {
        str: flags.DEFINE_string,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        bool: flags.DEFINE_boolean,
        list: flags.DEFINE_list,
        tuple: flags.DEFINE_multi_string,
    }
    kinds[kind](name, default, text, flag_values=options, **rules)
    if is_path:
        flags.register_validator(
            name, lambda value: value == default or _check_path(value), flag_values=options
        )


def _check_path(value: str | list[str]) -> bool:
    """Checks the value of a flag that names files or folders; returns true, as absl has it.

    Raises:
        flags.ValidationError: it is empty.
    """
    values = value if isinstance(value, list) else [value]
    if not values or not all(each.strip() for each in values):
        raise flags.ValidationError(
            f"must name a file or a folder (is a shell variable not set?). Received: {value!r}"
        )
    return True


def parse_flags(
    options: flags.FlagValues,
    argv: list[str],
    *,
    positional: str | None = None,
    rest: str | None = None,
) -> None:
    """Reads the command line into the flags.

    Args:
        options: the flags, defined and not yet read.
        argv: the command line.
        positional: the flag whose value may stand by itself, before the others.
        rest: the flag, a `tuple`, that takes all that is no flag, wherever it stands; what follows
            `--` is none.

    Raises:
        flags.Error: a flag is unknown (those that may be meant are named), is missing, or has a
            wrong value, names a file or folder by an empty text, or something that is no flag was
            given.
    """
    if positional and len(argv) > 1 and not argv[1].startswith("-"):
        argv = [argv[0], f"--{positional}={argv[1]}", *argv[2:]]
    options.set_gnu_getopt(rest is not None)  # flags may follow what is none
    try:
        others = options(argv)[1:]
    except flags.UnrecognizedFlagError as error:
        hint = suggest_flags(error.flagname, list(options))
        raise flags.Error(f"unknown flag --{error.flagname}.{hint}") from error
    except flags.IllegalFlagValueError as error:
        missing = re.findall(r"Flag (--\w+) must have a value other than None", str(error))
        if not missing:
            raise
        raise flags.Error(f"{' and '.join(missing)} must be given") from error
    _check_integers(options)
    if rest and others:
        setattr(options, rest, [*getattr(options, rest), *others])  # validated, as all flags
    elif others:
        raise flags.Error(f"flags only are expected. Received: {' '.join(others)}")


def _check_integers(options: flags.FlagValues) -> None:
    """Checks that no integer is beyond what tensors hold.

    Raises:
        flags.Error: one is, of a flag without an upper bound of its own.
    """
    for name in options:
        value, parser = options[name].value, options[name].parser
        if type(value) is int and abs(value) > MAX_INTEGER and not _has_upper_bound(parser):
            bound = f"<= {MAX_INTEGER}" if value > 0 else f">= -{MAX_INTEGER}"
            raise flags.Error(f"--{name} must be an integer {bound}. Received: {value}")


def _has_upper_bound(parser: Any) -> bool:
    return getattr(parser, "upper_bound", None) is not None


def parse_integers(name: str, texts: list[str]) -> tuple[int, ...]:
    """Returns the integers in the list of texts of a flag.

    >>> parse_integers("steps", ["1000", "2000"])
    (1000, 2000)

    Raises:
        flags.Error: a text is no integer, or one above `MAX_INTEGER`; the flag is named.
    """
    try:
        values = tuple(int(text) for text in texts)
    except ValueError as error:
        raise flags.Error(f"--{name} must be integers. Received: {','.join(texts)}") from error
    if any(abs(value) > MAX_INTEGER for value in values):
        raise flags.Error(
            f"--{name} must be integers <= {MAX_INTEGER}. Received: {','.join(texts)}"
        )
    return values


def parse_cutoffs(texts: list[str]) -> tuple[int, ...]:
    """Returns the ids in a list of texts.

    >>> parse_cutoffs(["20000", "40000"])
    (20000, 40000)

    Raises:
        flags.Error: a text is no integer.
    """
    return parse_integers("cutoffs", texts)


def parse_schedule(texts: list[str]) -> tuple[tuple[int, int], ...]:
    """Returns the pairs of a step and a length in a list of texts.

    >>> parse_schedule(["2000:32", "6000:64"])
    ((2000, 32), (6000, 64))

    Raises:
        flags.Error: a text is no such pair.
    """
    try:
        pairs = [text.split(":") for text in texts]
        return tuple((int(step), int(length)) for step, length in pairs)
    except ValueError as error:
        raise flags.Error(
            "--tgt_len_schedule must be pairs STEP:LENGTH, as in 2000:32,6000:64. "
            f"Received: {','.join(texts)}"
        ) from error


def _fail(name: str, error: object, status: int) -> int:
    print(f"{name}: " + " ".join(str(error).split()), file=sys.stderr)
    return status
