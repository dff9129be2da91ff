"""Flags for the fields of configs: defined from their descriptions, and read into configs."""

import dataclasses
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from absl import flags

from txl_tf.cli.flags import define_flag, parse_integers
from txl_tf.config import EvalConfig, ModelConfig, TrainConfig
from txl_tf.config.run_options import RunOptions

Config = TypeVar("Config", ModelConfig, TrainConfig, EvalConfig, RunOptions)

_EVAL_PREFIX = "eval_"
_EVAL_NOTE = "the preset's; without one, as in training"


def define_config_flags(
    options: flags.FlagValues,
    config: type,
    names: Collection[str] | None = None,
    *,
    prefix: str | None = None,
    otherwise: str | None = None,
) -> None:
    """Defines a flag for each field of a config, by the field's default and description.

    Args:
        options: the flags of the program, to which these are added.
        config: the class.
        names: the fields that get a flag; `None` for all.
        prefix: as in `name_flags`.
        otherwise: says in words what holds where a flag is not given, if that is not the field's
            default.
    """
    for field in dataclasses.fields(config):
        flag = name_flags(config, prefix).get(field.name)
        if flag is None or (names is not None and field.name not in names):
            continue
        rules = dict(field.metadata)
        help_text = rules.pop("help")
        default: Any = field.default
        kind = type(default)
        if kind is tuple:
            default, kind = list(default), list
        note = _EVAL_NOTE if otherwise is None and flag != field.name else otherwise
        if note is not None:
            default, help_text = None, f"{help_text} [default: {note}]"
        define_flag(options, flag, kind, default, help_text, **rules)


def override(
    config: Config, options: flags.FlagValues, *, prefix: str | None = None, **others: Any
) -> Config:
    """Returns the config with the values of those flags that were given on the command line.

    Args:
        config: has the other values.
        options: the flags; fields without a flag keep their values.
        prefix: as in `name_flags`.
        **others: values of fields that no flag decides.

    Raises:
        flags.Error: If the text of a flag cannot be read.
        UserError: If a value is out of its range.
    """
    given = dict(others)
    for name, flag in name_flags(type(config), prefix).items():
        if flag in options and options[flag].present:
            value: Any = options[flag].value
            given[name] = _PARSERS[name](value) if name in _PARSERS else value
    return dataclasses.replace(config, **given)


def name_flags(config: type, prefix: str | None = None) -> dict[str, str]:
    """Returns the flag of each field.

    The number of tokens has none: the records decide it.

    Args:
        config: the class.
        prefix: the start of the flags' names, before the names of the fields; `None` for "eval_"
            with `EvalConfig`, and for nothing with others.
    """
    if prefix is None:
        prefix = _EVAL_PREFIX if config is EvalConfig else ""
    names = [field.name for field in dataclasses.fields(config) if field.name != "n_token"]
    return {name: name if name.startswith(prefix) else prefix + name for name in names}


def parse_cutoffs(texts: list[str]) -> tuple[int, ...]:
    """Returns the ids in the value of `--cutoffs`.

    >>> parse_cutoffs(["20000", "40000"])
    (20000, 40000)

    Raises:
        flags.Error: If a text is no integer.
    """
    return parse_integers("cutoffs", texts)


def parse_schedule(texts: list[str]) -> tuple[tuple[int, int], ...]:
    """Returns the pairs of a step and a length in the value of `--tgt_len_schedule`.

    >>> parse_schedule(["2000:32", "6000:64"])
    ((2000, 32), (6000, 64))

    Raises:
        flags.Error: If a text is no such pair.
    """
    try:
        pairs = [text.split(":") for text in texts]
        return tuple((int(step), int(length)) for step, length in pairs)
    except ValueError as error:
        raise flags.Error(
            "--tgt_len_schedule must be pairs STEP:LENGTH, as in 2000:32,6000:64. "
            f"Received: {','.join(texts)}"
        ) from error


# Of fields that are no plain values: from the list of texts that a flag holds.
_PARSERS: dict[str, Callable[[list[str]], Any]] = {
    "cutoffs": parse_cutoffs,
    "tgt_len_schedule": parse_schedule,
}
