"""Defines, parses and describes the flags of the programs.

absl converts and checks the values. In addition, a flag that is given twice is an error, `--help`
lists flags by section, and the error for an unknown flag suggests similar ones.
"""

import difflib
import math
import os
import shutil
import textwrap
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from absl import flags

from txl_tf.config.base import MAX_INTEGER

# Names of flags in other packages, and the corresponding flags here.
SYNONYMS = {
    "batch": ("train_batch_size", "batch_size", "lanes"),
    "batch_size": ("train_batch_size", "lanes"),
    "block_size": ("tgt_len",),
    "ckpt": ("checkpoint", "eval_ckpt_path"),
    "context": ("mem_len",),
    "embed_dim": ("d_model",),
    "epochs": ("train_steps",),
    "heads": ("n_head",),
    "hidden_size": ("d_model",),
    "layers": ("n_layer",),
    "lr": ("learning_rate",),
    "max_iters": ("train_steps",),
    "max_length": ("max_new_tokens",),
    "max_tokens": ("max_new_tokens",),
    "memory": ("mem_len",),
    "model": ("run",),
    "output": ("out",),
    "output_dir": ("model_dir", "out"),
    "seq_len": ("tgt_len",),
    "steps": ("train_steps",),
    "temp": ("temperature",),
}
OUTPUT = "Machine and output"  # the section of flags that programs share
_UNBROKEN_SPACE = "\xa0"
_PLACEHOLDERS = {str: "TEXT", int: "INTEGER", float: "NUMBER", list: "LIST"}


class Facts(NamedTuple):
    """What `--help` says about a flag; the fields are arguments of `define_flag`."""

    kind: type
    choices: tuple[str, ...]
    required: bool
    is_path: bool
    section: str
    rare: bool


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
    """Defines a flag; its value is checked when the command line is parsed.

    Args:
        options: The flags of the program, to which this one is added.
        name: The name of the flag, without dashes.
        kind: `str`, `int`, `float`, `bool` or `list` (comma-separated strings).
        default: The value if the flag is not given.
        help_text: The meaning of the flag, in sentences. `format_help` adds choices and default;
            "[default: ...]" at the end describes a default that is `None`.
        choices: The allowed strings.
        lower_bound: The smallest allowed number.
        upper_bound: The largest allowed number; `MAX_INTEGER` by default for integers.
        required: Whether the flag must be given.
        is_path: Whether the flag names files or folders. An empty string is then an error: it
            usually comes from an unset shell variable, and would mean the current folder. `~` at
            its start is the home folder. (An empty string is also an error for any other text
            whose default is `None`.)
        multiple: Whether the flag may be repeated; its value is then the list of all given strings.
        section: The heading under which `--help` lists the flag.
        rare: Whether only `--helpfull` lists the flag.
    """
    parser: Any
    if kind is int:
        low: Any = -MAX_INTEGER if lower_bound is None else lower_bound
        high: Any = MAX_INTEGER if upper_bound is None else upper_bound
        parser = flags.IntegerParser(low, high)
    elif kind is float:
        parser = _RealParser(lower_bound, upper_bound)
    elif kind is bool:
        parser = flags.BooleanParser()
    elif kind is list:
        parser = _PathsParser() if is_path else _NamesParser(choices)
    elif choices:
        parser = flags.EnumParser(list(choices))
    elif is_path:
        parser = _PathParser(is_utf8=not multiple)
    elif default is None and not multiple:
        parser = _TextParser()
    else:
        parser = flags.ArgumentParser()
    flag: Any
    if multiple:
        flag = flags.MultiFlag(parser, None, name, default, help_text)
    else:
        flag = flags.Flag(
            parser, None, name, default, help_text, boolean=kind is bool, allow_overwrite=False
        )
    flag.help = help_text  # without the additions of absl
    flag.facts = Facts(kind, tuple(choices or ()), required, is_path, section, rare)
    flags.DEFINE_flag(flag, options)


def refuse_flags(options: flags.FlagValues, *names: str, reason: str) -> None:
    """Raises a `flags.Error` if the command line has one of these flags, which have no effect.

    `reason` ends the message, as in "without --do_eval".
    """
    for name in names:
        if options[name].present:
            raise flags.Error(f"--{name} has no effect {reason}")


class _RealParser(flags.FloatParser):
    """Takes a finite number."""

    def convert(self, argument: Any) -> float:
        if not math.isfinite(value := super().convert(argument)):
            raise ValueError("it must be finite")
        return value


class _TextParser(flags.ArgumentParser):
    """Takes a text; an empty one would be taken for none."""

    def parse(self, argument: str) -> str:
        if not argument:
            raise ValueError("it must not be empty (is a shell variable not set?)")
        return argument


class _PathParser(flags.ArgumentParser):
    """Takes the path of a file or a folder."""

    def __init__(self, *, is_utf8: bool):
        self._is_utf8 = is_utf8

    def parse(self, argument: str) -> str:
        if self._is_utf8:
            argument.encode()  # as TensorFlow does
        return _expand_path(argument)


class _NamesParser(flags.ListParser):
    """Takes strings separated by commas, each of which must be one of the choices, if any."""

    def __init__(self, choices: Collection[str] | None):
        super().__init__()
        self._parse_name = flags.EnumParser(list(choices)).parse if choices else str

    def parse(self, argument: Any) -> list[str]:
        return [self._parse_name(name) for name in super().parse(argument)]


class _PathsParser(flags.ListParser):
    """Takes paths separated by commas."""

    def parse(self, argument: Any) -> list[str]:
        if isinstance(argument, str):
            _expand_path(argument)  # an empty list comes from an unset shell variable, too
        return [_expand_path(path) for path in super().parse(argument)]


def _expand_path(path: str) -> str:
    """Returns a path with `~` replaced by the home folder: shells keep that of `--flag=~/...`."""
    if not path.strip():
        raise ValueError("it must name a file or a folder (is a shell variable not set?)")
    return os.path.expanduser(path)


def define_second_name(options: flags.FlagValues, name: str, original: str) -> None:
    """Defines an alias of an existing flag; both names set the same value."""
    flags.DEFINE_alias(name, original, flag_values=options)
    second: Any = options[name]
    second.help = f"Alias of --{original}."
    second.facts = _get_facts(options[original])._replace(required=False, rare=True)


def parse_flags(
    options: flags.FlagValues, argv: list[str], *, positional: str | None = None
) -> None:
    """Parses the command line.

    Arguments that are not flags, and all arguments after `--`, are values of the flag `positional`:
    one value, or any number if the flag was defined with `multiple`.

    Raises:
        flags.Error: If a flag is unknown (the message suggests similar ones), a required flag is
            missing, a value is not allowed, or an unexpected argument is not a flag.
    """
    options.set_gnu_getopt(positional is not None)  # flags may follow other arguments
    try:
        others = options(argv)[1:]
    except flags.UnrecognizedFlagError as error:
        name = error.flagname
        raise flags.Error(f"unknown flag --{name}.{_suggest_flags(name, options)}") from error
    if positional is None and others:
        raise flags.Error(f"only flags are expected. Received: {' '.join(others)}")
    for text in others:
        options[str(positional)].parse(text)
    missing = [n for n in options if _get_facts(options[n]).required and options[n].value is None]
    if missing:
        raise flags.Error(f"{' and '.join(f'--{name}' for name in missing)} must be given")


def _suggest_flags(name: str, options: flags.FlagValues) -> str:
    """Returns " Did you mean ...?" with flags similar to an unknown one, or an empty string."""
    name = name.replace("-", "_")
    near = [name] if name in options else difflib.get_close_matches(name, options, 2, 0.76)
    found = dict.fromkeys([*SYNONYMS.get(name, ()), *near])
    names = [f"--{other}" for other in found if other in options]
    return f" Did you mean {' or '.join(names)}?" if names else ""


def suggest(name: str, known: Collection[str]) -> str:
    """Returns " Did you mean ...?" with the known name closest to a wrong one, or an empty string.

    >>> suggest("tset", ["train", "test"])
    ' Did you mean test?'
    """
    near = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]}?" if near else ""


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


def format_help(options: flags.FlagValues, *, full: bool = False) -> str:
    """Returns the description of the flags by section, in the order of their definition.

    Rare flags and aliases are left out unless `full`.
    """
    sections: dict[str, list[str]] = {}
    n_rare = 0
    for flag in map(options.__getitem__, options):
        facts = _get_facts(flag)
        if facts.rare and not full:
            n_rare += 1
        else:
            sections.setdefault(facts.section, []).append(_describe_flag(flag))
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
    facts = _get_facts(flag)
    value = "PATH" if facts.is_path else _PLACEHOLDERS.get(facts.kind)
    head = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}={value}"
    return " ".join([f"{head}: {flag.help}", *_list_notes(flag)])


def _list_notes(flag: flags.Flag) -> Iterator[str]:
    """Yields the additions to the help text that follow from the definition of a flag."""
    facts = _get_facts(flag)
    if facts.choices:
        yield f"One of {', '.join(facts.choices)}."
    if isinstance(flag, flags.MultiFlag):
        yield "May be given more than once."
    if facts.required:
        yield "[required]"
    elif flag.default not in (None, "", []):
        yield f"[default:{_UNBROKEN_SPACE}{write_value(flag.default)}]"


def _get_facts(flag: Any) -> Facts:
    return flag.facts


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
