"""Flags for the fields of configs: defined from their docstrings, and read into configs."""

import dataclasses
import re
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from absl import flags

from txl_tf.cli.program import define_flag, parse_cutoffs, parse_schedule
from txl_tf.config import EvalConfig, ModelConfig, TrainConfig
from txl_tf.config.run_options import RunOptions
from txl_tf.config.training import MAX_SEED
from txl_tf.errors import UserError

Config = TypeVar("Config", ModelConfig, TrainConfig, EvalConfig, RunOptions)
Result = TypeVar("Result")

_EVAL_PREFIX = "eval_"
_RULES: dict[str, dict[str, Any]] = {"seed": {"upper_bound": MAX_SEED}}
_PARSERS: dict[str, Callable[[list[str]], Any]] = {  # of fields that are lists of texts as flags
    "cutoffs": parse_cutoffs,
    "tgt_len_schedule": parse_schedule,
}


def answer_as_flags(call: Callable[..., Result], *arguments: Any) -> Result:
    """Calls, and raises what is wrong with the value of a flag as an error of the flags."""
    try:
        return call(*arguments)
    except UserError as error:
        raise flags.Error(str(error)) from error


def override(
    config: Config, options: flags.FlagValues, *, prefix: str | None = None, **others: Any
) -> Config:
    """Returns the config with those of its fields whose flags are there and were given by hand.

    Args:
        config: where the other fields are from.
        options: the flags.
        prefix: how their names begin; `None` for that of the config's class.
        **others: fields that no flag decides.

    Raises:
        flags.Error: the text of a flag cannot be read.
        UserError: a value is out of its range.
    """
    given = dict(others)
    for name, flag in name_flags(type(config), prefix).items():
        if flag in options and options[flag].present:
            value: Any = options[flag].value
            given[name] = _PARSERS[name](value) if name in _PARSERS else value
    return dataclasses.replace(config, **given)


def define_config_flags(
    options: flags.FlagValues, config: type, names: Collection[str] | None = None
) -> None:
    """Defines a flag for each field of a config, with its default and its description.

    Args:
        options: where.
        config: the class.
        names: of the fields; `None` for all.
    """
    texts = _describe_fields(config)
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for name, flag in name_flags(config).items():
        if names is not None and name not in names:
            continue
        default: Any = defaults[name]
        text, kind = texts[name], type(default)
        if kind is tuple:
            default, kind = list(default), list
        if flag != name:
            default, text = None, f"{text} [default: the preset's, else as in training]"
        define_flag(options, flag, kind, default, text, **_RULES.get(name, {}))


def name_flags(config: type, prefix: str | None = None) -> dict[str, str]:
    """Returns the flag of each field: its name; for `EvalConfig` it begins with eval_.

    The number of tokens has none: the records know it.
    """
    if prefix is None:
        prefix = _EVAL_PREFIX if config is EvalConfig else ""
    names = [field.name for field in dataclasses.fields(config) if field.name != "n_token"]
    return {name: name if name.startswith(prefix) else prefix + name for name in names}


def _describe_fields(config: type) -> dict[str, str]:
    """Returns what a config's docstring says of its fields."""
    arguments = (config.__doc__ or "").partition("Args:")[2].partition("Raises:")[0]
    found = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", arguments, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}
