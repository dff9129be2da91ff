"""The flags of the programs: how they are defined, read and described."""

import difflib
import math
import shutil
import textwrap
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

from absl import flags

from txl_tf.cli.flag_hints import suggest_flags
from txl_tf.config.base import MAX_INTEGER
from txl_tf.errors import UserError

Result = TypeVar("Result")

_CONVERSIONS: dict[type, Callable[[str], Any]] = {
    str: str,
    int: flags.IntegerParser().convert,
    float: float,
    bool: flags.BooleanParser().parse,
    list: flags.ListParser().parse,
}
_RULES = {int: "an integer", float: "a finite number", bool: "true or false"}
_UNBROKEN_SPACE = "\xa0"
_PLACEHOLDERS = {str: "TEXT", int: "INTEGER", float: "NUMBER", list: "LIST"}


def define_flag(
    options: flags.FlagValues,
    name: str,
    kind: type,
    default: Any,
    help_text: str,
    *,
    choices: Collection[str] | None = None,
    lower_bound: float | None = None,
    upper_bound: float | None = None,
    required: bool = False,
    is_path: bool = False,
    multiple: bool = False,
) -> None:
    """Defines a flag. What a value must be is checked when the command line is read.

    Args:
        options: the flags of the program, to which this one is added.
        name: its name, without the dashes.
        kind: `str`, `int`, `float`, `bool` or `list` (texts separated by commas).
        default: its value if it is not given.
        help_text: its meaning, in sentences. `format_help` adds choices and default; "[default:
            ...]" at the end says in words what holds where the default is `None`.
        choices: the texts that it takes; of a list, those that it may hold.
        lower_bound: the least number that it takes.
        upper_bound: the largest number that it takes; integers are held to `MAX_INTEGER` without.
        required: whether it must be given.
        is_path: whether it names files or folders. An empty text is refused then: most often it
            is a shell variable that is not set, and would stand for the current folder.
        multiple: whether it may be given more than once; its value is a list then.
    """
    if kind is int:
        lower_bound = -MAX_INTEGER if lower_bound is None else lower_bound
        upper_bound = MAX_INTEGER if upper_bound is None else upper_bound
    parser = FlagParser(
        name, kind, tuple(choices or ()), lower_bound, upper_bound, required, is_path
    )
    flag_class: Any = flags.MultiFlag if multiple else flags.Flag
    flag = flag_class(parser, None, name, default, help_text, boolean=kind is bool)
    flag.help = help_text  # without what absl adds to it
    flags.DEFINE_flag(flag, options)


def define_second_name(options: flags.FlagValues, name: str, original: str) -> None:
    """Defines another name of a flag that is already defined; both set one value."""
    flags.DEFINE_alias(name, original, flag_values=options)
    options[name].help = f"Second name of --{original}."


class FlagParser(flags.ArgumentParser):
    """Turns the text of a flag into its value; the arguments are those of `define_flag`."""

    def __init__(
        self,
        name: str,
        kind: type,
        choices: tuple[str, ...],
        lower_bound: float | None,
        upper_bound: float | None,
        required: bool,
        is_path: bool,
    ):
        self.name = name
        self.kind = kind
        self.choices = choices
        self.lower_bound = lower_bound
        self.upper_bound = upper_bound
        self.required = required
        self.is_path = is_path

    def parse(self, argument: Any) -> Any:
        """Returns the value of a text; a default, which is none, as it is.

        Raises:
            flags.Error: If the flag does not take the value. The message states the rule.
        """
        if not isinstance(argument, str):
            return argument
        try:
            value = _CONVERSIONS[self.kind](argument)
            rule = self._find_broken_rule(value)
        except ValueError:
            rule = f"be {_RULES.get(self.kind, 'a list')}"
        if rule is None:
            return value
        shown = argument if argument.strip() else repr(argument)
        hint = self._suggest_choice(argument)
        raise flags.Error(f"--{self.name} must {rule}. Received: {shown}{hint}")

    def _find_broken_rule(self, value: Any) -> str | None:
        """Returns the rule that a value breaks, as it follows "must"; `None` for a good value."""
        texts = value if self.kind is list else [value]
        if self.is_path and not (texts and all(text.strip() for text in texts)):
            return "name a file or a folder (is a shell variable not set?)"
        if self.choices and not (texts and all(text in self.choices for text in texts)):
            several = "or more " if self.kind is list else ""
            return f"be one {several}of {', '.join(self.choices)}"
        if self.kind is float and not math.isfinite(value):
            return f"be {_RULES[float]}"
        if self.lower_bound is not None and value < self.lower_bound:
            return f"be {_RULES[self.kind]} >= {self.lower_bound}"
        if self.upper_bound is not None and value > self.upper_bound:
            return f"be {_RULES[self.kind]} <= {self.upper_bound}"
        return None

    def _suggest_choice(self, text: str) -> str:
        nearest = difflib.get_close_matches(text, self.choices if self.kind is str else (), n=1)
        return f". Did you mean {nearest[0]}?" if nearest else ""


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
        positional: the flag whose value may stand without its name, before all others.
        rest: the flag, defined with `multiple`, that takes all arguments that are no flags,
            wherever they stand; nothing after `--` is a flag.

    Raises:
        flags.Error: If a flag is unknown (the message names those that may be meant), is missing,
            or does not take its value; or if there is an argument that is no flag.
    """
    if positional and len(argv) > 1 and not argv[1].startswith("-"):
        argv = [argv[0], f"--{positional}={argv[1]}", *argv[2:]]
    options.set_gnu_getopt(rest is not None)  # flags may follow other arguments
    try:
        others = options(argv)[1:]
    except flags.UnrecognizedFlagError as error:
        hint = suggest_flags(error.flagname, list(options))
        raise flags.Error(f"unknown flag --{error.flagname}.{hint}") from error
    missing = [name for name in options if _is_missing(options[name])]
    if missing:
        raise flags.Error(f"{' and '.join(f'--{name}' for name in missing)} must be given")
    if rest and others:
        options[rest].parse(others)
    elif others:
        raise flags.Error(f"only flags are expected. Received: {' '.join(others)}")


def parse_integers(name: str, texts: list[str]) -> tuple[int, ...]:
    """Returns the integers in the value of a flag, a list.

    >>> parse_integers("steps", ["1000", "2000"])
    (1000, 2000)

    Raises:
        flags.Error: If a text is no integer, or one above `MAX_INTEGER`; the flag is named.
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


def reraise_as_flag_error(call: Callable[..., Result], *arguments: Any) -> Result:
    """Calls the function and re-raises `UserError` as `flags.Error`."""
    try:
        return call(*arguments)
    except UserError as error:
        raise flags.Error(str(error)) from error


def format_help(options: flags.FlagValues) -> str:
    """Returns the description of all flags for `--help`, in the order of their definition."""
    width = min(shutil.get_terminal_size().columns, 100)
    lines = [
        textwrap.fill(
            _describe_flag(options[name]),
            width,
            initial_indent="  ",
            subsequent_indent="      ",
            break_on_hyphens=False,
        )
        for name in options
    ]
    return "\n".join(lines).replace(_UNBROKEN_SPACE, " ")


def _describe_flag(flag: flags.Flag) -> str:
    parser: Any = flag.parser
    if flag.name != parser.name:  # a second name
        return f"--{flag.name}: {flag.help}"
    head = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}={_get_placeholder(parser)}"
    return " ".join([f"{head}: {flag.help}", *_list_notes(flag)])


def _get_placeholder(parser: FlagParser) -> str:
    return "PATH" if parser.is_path and parser.kind is str else _PLACEHOLDERS[parser.kind]


def _list_notes(flag: flags.Flag) -> Iterator[str]:
    """Yields what the definition of a flag adds to its help."""
    parser: Any = flag.parser
    if parser.choices:
        several = "One or more" if parser.kind is list else "One"
        yield f"{several} of {', '.join(parser.choices)}."
    if isinstance(flag, flags.MultiFlag):
        yield "May be given more than once."
    if parser.required:
        yield "[required]"
    elif flag.default not in (None, "", []):
        yield f"[default:{_UNBROKEN_SPACE}{write_value(flag.default)}]"


def write_value(value: Any) -> str:
    """Returns a value as it is written on a command line.

    >>> write_value(True), write_value(((2000, 32), (6000, 64)))
    ('true', '2000:32,6000:64')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(":".join(map(str, x)) if isinstance(x, tuple) else str(x) for x in value)
    return str(value)


def _is_missing(flag: flags.Flag) -> bool:
    parser: Any = flag.parser
    return parser.required and flag.value is None
