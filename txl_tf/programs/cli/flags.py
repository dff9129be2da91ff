"""Defines, parses and describes the flags of the programs."""

import dataclasses
import difflib
import math
import re
import shutil
import textwrap
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

from absl import flags

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
# Flags that are gone, and what to use instead.
GONE = {
    "connect_minutes": "TensorFlow waits an hour; for less, use the scheduler's time limit",
    "draft_len": "prompt lookup gained only where a text repeats itself; leave it out",
    "dynamic_recipe": "--dynamic has the rule of the paper; give it a --dynamic_learning_rate",
    "tune": "evaluate with several --dynamic_learning_rate, as docs/dynamic-evaluation.md shows",
}
OUTPUT = "Machine and output"  # the section of flags that programs share
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
    section: str = "Flags",
    rare: bool = False,
) -> None:
    """Defines a flag, whose value is checked when the command line is parsed.

    A flag that is given again adds to its value if that is a list; otherwise it is an error.

    Args:
        options: The flags of the program, to which this one is added.
        name: The name of the flag, without dashes.
        kind: `str`, `int`, `float`, `bool` or `list` (texts separated by commas).
        default: The value if the flag is not given.
        help_text: The meaning of the flag, in sentences. `format_help` adds choices and default;
            "[default: ...]" at the end describes a default that is `None`.
        choices: The texts that are allowed, as the value or in a list.
        lower_bound: The smallest number that is allowed.
        upper_bound: The largest number that is allowed; by default `MAX_INTEGER` for integers.
        required: Whether the flag must be given.
        is_path: Whether the flag names files or folders. An empty text is then an error: it is
            usually an unset shell variable, and would mean the current folder.
        multiple: Whether the value is a list of the texts of all its occurrences, each unsplit.
        section: The heading under which `--help` lists the flag.
        rare: Whether only `--helpfull` lists the flag.
    """
    if kind is int:
        lower_bound = -MAX_INTEGER if lower_bound is None else lower_bound
        upper_bound = MAX_INTEGER if upper_bound is None else upper_bound
    parser = FlagParser(
        name, kind, tuple(choices or ()), lower_bound, upper_bound, required, is_path, section, rare
    )
    flag_class: Any = flags.MultiFlag if multiple else _OnceFlag
    flag = flag_class(parser, None, name, default, help_text, boolean=kind is bool)
    flag.help = help_text  # without the additions of absl
    flags.DEFINE_flag(flag, options)


def define_second_name(options: flags.FlagValues, name: str, original: str) -> None:
    """Defines another name of an existing flag; both names set the same value."""
    flags.DEFINE_alias(name, original, flag_values=options)
    options[name].help = f"Second name of --{original}."
    first: Any = options[original]
    first.second_name = name


def _write_names(flag: flags.Flag) -> str:
    """Returns the name of a flag and its second name, for messages."""
    second = getattr(flag, "second_name", None)
    return f"--{flag.name} (or --{second})" if second else f"--{flag.name}"


class _OnceFlag(flags.Flag):
    """A flag that adds the values of a list, and refuses a second value of any other kind."""

    def parse(self, argument: Any) -> None:
        parser: Any = self.parser
        if parser.is_path and parser.kind is str and isinstance(argument, str):
            try:
                argument.encode()  # as TensorFlow does
            except UnicodeEncodeError as error:
                raise flags.Error(f"--{self.name} must be UTF-8. Received: {argument!r}") from error
        if not self.present or argument is None:
            super().parse(argument)
            return
        earlier: Any = self.value
        if parser.kind is not list:
            raise flags.Error(
                f"--{self.name} must be given once. Received: {write_value(earlier)} and {argument}"
            )
        super().parse(argument)
        added: Any = self.value
        self.value = earlier + added


@dataclasses.dataclass(eq=False)
class FlagParser(flags.ArgumentParser):
    """Parses the text of a flag; the arguments are those of `define_flag`."""

    name: str
    kind: type
    choices: tuple[str, ...]
    lower_bound: float | None
    upper_bound: float | None
    required: bool
    is_path: bool
    section: str
    rare: bool

    def parse(self, argument: Any) -> Any:
        """Returns the value of a text. A default that is not a text is returned unchanged."""
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
        hint = suggest(argument, self.choices if self.kind is str else ())
        raise flags.Error(f"--{self.name} must {rule}. Received: {shown}{hint and f'.{hint}'}")

    def _find_broken_rule(self, value: Any) -> str | None:
        """Returns the rule that a value breaks, to follow "must"; `None` for a valid value."""
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


def parse_flags(
    options: flags.FlagValues, argv: list[str], *, positional: str | None = None
) -> None:
    """Parses the command line.

    The flag `positional` takes the arguments that are not flags, wherever they are, and all
    arguments after `--`: one, or any number if it was defined with `multiple`.

    Raises:
        flags.Error: If a flag is unknown (the message suggests similar ones), is missing, or has a
            value that is not allowed; or if an argument is not a flag.
    """
    options.set_gnu_getopt(positional is not None)  # flags may follow other arguments
    try:
        others = options(argv)[1:]
    except flags.UnrecognizedFlagError as error:
        common = [name for name in options if not getattr(options[name].parser, "rare", True)]
        name, own = error.flagname, list(options)
        if name in GONE:
            raise flags.Error(f"--{name} is gone: {GONE[name]}") from error
        hint = suggest(name, common, prefix="--") or suggest(name, own, prefix="--")
        raise flags.Error(f"unknown flag --{error.flagname}.{hint}") from error
    if positional is None and others:
        raise flags.Error(f"only flags are expected. Received: {' '.join(others)}")
    for text in others:
        options[str(positional)].parse(text)
    missing = [options[name] for name in options if _is_missing(options[name])]
    if missing:
        raise flags.Error(f"{' and '.join(map(_write_names, missing))} must be given")


def suggest(name: str, known: Collection[str], *, prefix: str = "") -> str:
    """Returns a question with the known names that a wrong one may mean, or an empty text.

    They are those that it misspells or abbreviates.

    >>> suggest("tset", ["train", "test"]), suggest("lr", ["learning_rate"], prefix="--")
    (' Did you mean test?', ' Did you mean --learning_rate?')
    """
    name = name.replace("-", "_")
    # Of flags, typing errors only: names that are less alike mean something else.
    n, cutoff = (2, 0.76) if prefix else (1, 0.6)
    near = difflib.get_close_matches(name, known, n=n, cutoff=cutoff)
    short = [other for other in known if _is_acronym(name, other)]
    short = short or sorted((other for other in known if _is_short(name, other)), key=len)
    found = [name] if name in known else list(dict.fromkeys([*near, *short]))[:3]
    names = [f"{prefix}{other}" for other in found]
    return f" Did you mean {' or '.join(names)}?" if names else ""


def _is_acronym(name: str, other: str) -> bool:
    """Returns whether a name holds the first letters of the last words of another."""
    return len(name) > 1 and "".join(word[0] for word in other.split("_") if word).endswith(name)


def _is_short(name: str, other: str) -> bool:
    """Returns whether each word of a name abbreviates, or begins with, a word of another."""

    def is_alike(word: str, whole: str) -> bool:
        short, long = sorted((word, whole), key=len)
        return len(short) > 2 and re.match(".*".join(map(re.escape, short)), long) is not None

    words = other.split("_")
    return all(any(is_alike(word, whole) for whole in words) for word in name.split("_"))


def parse_integers(name: str, texts: list[str]) -> tuple[int, ...]:
    """Returns the integers in the value of a flag of kind `list`.

    >>> parse_integers("steps", ["1000", "2000"])
    (1000, 2000)
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


def reraise_as_flag_error(call: Callable[..., Result], *arguments: Any, **keywords: Any) -> Result:
    """Calls the function and re-raises `UserError` as `flags.Error`."""
    try:
        return call(*arguments, **keywords)
    except UserError as error:
        raise flags.Error(str(error)) from error


def format_help(options: flags.FlagValues, *, full: bool = False) -> str:
    """Returns the description of the flags by section, in the order of their definition.

    Rare flags and second names are left out unless `full`.
    """
    sections: dict[str, list[str]] = {}
    n_rare = 0
    for name in options:
        parser: Any = options[name].parser
        is_second = options[name].name != parser.name
        if (parser.rare or is_second) and not full:
            n_rare += 1
        else:
            sections.setdefault(parser.section, []).append(_describe_flag(options[name]))
    lines = []
    for section, texts in sections.items():
        lines += [f"{section}:", *map(_wrap, texts), ""]
    if n_rare:
        lines.append(f"--helpfull lists {n_rare} more flags.")
    return "\n".join(lines).rstrip()


def _wrap(text: str) -> str:
    width = min(shutil.get_terminal_size().columns, 100)
    wrapper = textwrap.TextWrapper(
        width, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False
    )
    return wrapper.fill(text).replace(_UNBROKEN_SPACE, " ")


def _describe_flag(flag: flags.Flag) -> str:
    parser: Any = flag.parser
    if flag.name != parser.name:  # a second name
        return f"--{flag.name}: {flag.help}"
    is_path = parser.is_path and parser.kind is str
    value = "PATH" if is_path else _PLACEHOLDERS.get(parser.kind)
    head = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}={value}"
    return " ".join([f"{head}: {flag.help}", *_list_notes(flag)])


def _list_notes(flag: flags.Flag) -> Iterator[str]:
    """Yields the additions to the help text that follow from the definition of a flag."""
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
    """Returns a value as written on a command line.

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
    return parser.required and flag.value is None and flag.name == parser.name
