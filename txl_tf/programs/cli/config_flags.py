"""Flags for the fields of configs, defined from the descriptions of the fields."""

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from absl import flags

from txl_tf.config import JIT_MODES, EvalConfig, ModelConfig, TrainConfig
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.config.training import JIT_HELP, RunOptions
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag, parse_integers

Config = TypeVar("Config", ModelConfig, TrainConfig, EvalConfig, RunOptions, DynamicConfig)

_EVAL_PREFIX = "eval_"
_EVAL_NOTE = "the preset's; without one, as in training"
SPAN_FIELDS = ("tgt_len", "mem_len", "same_length", "clamp_len")


def define_jit_flag(options: flags.FlagValues) -> None:
    """Defines `--jit` for programs that do not train."""
    define_flag(options, "jit", str, "auto", JIT_HELP, choices=JIT_MODES)


def define_config_flags(
    options: flags.FlagValues,
    config: type,
    names: Collection[str] | None = None,
    *,
    prefix: str | None = None,
    otherwise: str | None = None,
    section: str = "Flags",
    rare: bool = False,
) -> None:
    """Defines a flag for each field of a config, or for those in `names`.

    `otherwise` describes the value of a flag that is not given, if it is not the field's default.
    With `rare`, only `--helpfull` lists the flags.
    """
    for field in dataclasses.fields(config):
        flag = name_flags(config, prefix).get(field.name)
        if flag is None or (names is not None and field.name not in names):
            continue
        note = _EVAL_NOTE if otherwise is None and flag != field.name else otherwise
        rules: dict[str, Any] = {"section": section} | ({"rare": True} if rare else {})
        if note is not None:
            rules |= {"default": None, "after": f" [default: {note}]"}
        define_field_flag(options, flag, field, **rules)


def define_field_flag(
    options: flags.FlagValues,
    name: str,
    field: dataclasses.Field,
    *,
    before: str = "",
    after: str = "",
    **rules: Any,
) -> None:
    """Defines a flag from the description of a field; `rules` override those of the field."""
    default: Any = None if field.default is dataclasses.MISSING else field.default
    kind = str if default is None else type(default)
    if kind is tuple:
        default, kind = list(default), list
    rules = {"default": default, "kind": kind} | dict(field.metadata) | rules
    rules.pop("range", None)  # the config checks it
    define_flag(options, name, help_text=f"{before}{rules.pop('help')}{after}", **rules)


def override(
    config: Config, options: flags.FlagValues, *, prefix: str | None = None, **others: Any
) -> Config:
    """Returns a config with the values of the flags on the command line, and of `others`.

    Raises:
        flags.Error: If the values do not make a valid config.
    """
    given = dict(others)
    for name, flag in name_flags(type(config), prefix).items():
        if flag in options and options[flag].present:
            value: Any = options[flag].value
            given[name] = _PARSERS[name](value) if name in _PARSERS else value
    try:
        return dataclasses.replace(config, **given)
    except UserError as error:
        raise flags.Error(str(error)) from error


def name_flags(config: type, prefix: str | None = None) -> dict[str, str]:
    """Returns the flag name of each field except `n_token`, which the records determine.

    By default, the prefix is "eval_" for `EvalConfig` and empty otherwise.
    """
    if prefix is None:
        prefix = _EVAL_PREFIX if config is EvalConfig else ""
    names = [field.name for field in dataclasses.fields(config) if field.name != "n_token"]
    return {name: name if name.startswith(prefix) else prefix + name for name in names}


def define_span_flags(options: flags.FlagValues, otherwise: str) -> None:
    """Defines the flags for segment length and span, which override the config of a run."""
    define_config_flags(options, EvalConfig, SPAN_FIELDS, prefix="", otherwise=otherwise)


def override_evaluation(config: EvalConfig, options: flags.FlagValues) -> EvalConfig:
    """Returns a config with the values of the flags, where `--lanes` sets `eval_batch_size`."""
    has_lanes = "lanes" in options and options["lanes"].present
    others = {"eval_batch_size": options.lanes} if has_lanes else {}
    return override(config, options, prefix="", **others)


def parse_schedule(texts: list[str]) -> tuple[tuple[int, int], ...]:
    """Returns the pairs of a step and a length in the value of `--tgt_len_schedule`.

    >>> parse_schedule(["2000:32", "6000:64"])
    ((2000, 32), (6000, 64))
    """
    try:
        pairs = [text.split(":") for text in texts]
        return tuple((int(step), int(length)) for step, length in pairs)
    except ValueError as error:
        raise flags.Error(
            "--tgt_len_schedule must be pairs STEP:LENGTH, as in 2000:32,6000:64. "
            f"Received: {','.join(texts)}"
        ) from error


# Fields with structured values, which are parsed from a flag's list of strings.
_PARSERS: dict[str, Callable[[list[str]], Any]] = {
    "cutoffs": functools.partial(parse_integers, "cutoffs"),
    "tgt_len_schedule": parse_schedule,
}
