"""Base class of all configs: fields with descriptions, checks of values, and JSON conversion."""

import dataclasses
import difflib
import json
import math
import re
import reprlib
import sys
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple, Self, TypedDict, TypeVar, Unpack

from txl_tf.errors import UserError

MAX_INTEGER = 2**31 - 1  # ids, lengths and steps are int32
Class = TypeVar("Class")
_SHORT = reprlib.Repr()  # values in messages
_SHORT.maxstring = _SHORT.maxother = 200
_SHORT.maxtuple = 50


def list_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Describes the differences between two sets of named values.

    >>> list_differences({"a": 1, "b": 2}, {"b": 3, "a": 1, "c": 4})
    ['b is 2 there and 3 here', 'c is missing there and 4 here']
    """
    texts = [{name: repr(value) for name, value in values.items()} for values in (there, here)]
    return [
        f"{name} is {texts[0].get(name, 'missing')} there and {texts[1].get(name, 'missing')} here"
        for name in sorted(there.keys() | here.keys())
        if texts[0].get(name) != texts[1].get(name)
    ]


class Range(NamedTuple):
    """The values allowed for a real number, and the text after "must" in the error message."""

    contains: Callable[[float], bool]
    rule: str


POSITIVE = Range(lambda value: value > 0, "be positive")
NOT_NEGATIVE = Range(lambda value: value >= 0, "not be negative")
SHARE = Range(lambda value: 0 <= value <= 1, "be in [0, 1]")
RATE = Range(lambda value: 0 <= value < 1, "be in [0, 1)")


class Rules(TypedDict, total=False):
    """Rules for the values of a config field and for its flag."""

    choices: tuple[str, ...]  # for a string
    range: Range  # for a real number; if missing, any finite number
    lower_bound: int  # for an integer
    upper_bound: int  # for an integer; if missing, `MAX_INTEGER`
    kind: type  # of the flag, if the default does not determine it
    is_path: bool  # whether the value names files or folders
    rare: bool  # whether only `--helpfull` lists the flag


def describe(help_text: str, **rules: Unpack[Rules]) -> dict[str, Any]:
    """Returns the metadata of a config field: its description, in sentences, and its rules.

    A field is described only here. `document_fields` adds the description to the docstring of the
    class, and programs define a flag from it; flags also work without docstrings (`python -OO`).
    """
    return {"help": help_text, **rules}


def define_field(default: Any, help_text: str, **rules: Unpack[Rules]) -> Any:
    """Returns a config field with a default; the other arguments are those of `describe`."""
    return dataclasses.field(default=default, metadata=describe(help_text, **rules))


def document_fields(config: type[Class]) -> type[Class]:
    """Adds the descriptions of the fields to the docstring of a dataclass, as its `Args`."""
    if config.__doc__:
        fields = dataclasses.fields(config)  # type: ignore[arg-type]
        lines = [f"        {field.name}: {field.metadata['help']}\n" for field in fields]
        head, raises, tail = config.__doc__.partition("    Raises:\n")
        config.__doc__ = "".join([head.rstrip(), "\n\n    Args:\n", *lines, "\n", raises, tail])
    return config


class Config:
    """Base of the configs: checks the values of fields, and converts to and from JSON."""

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a dict for `json.dump`."""
        return dataclasses.asdict(self)  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, content: dict[str, Any] | str) -> Self:
        """Creates the config from a dict or a JSON string.

        Raises:
            UserError: If the content is not an object, has an unknown field (the message suggests
                the closest one), lacks a required field, or has a value out of range.
        """
        try:
            fields = json.loads(content) if isinstance(content, str) else content
        except (ValueError, RecursionError) as error:
            raise UserError(f"{cls.__name__} cannot be read: {error}") from error
        if not isinstance(fields, dict):
            raise UserError(f"{cls.__name__} must be an object. Received: {fields!r}")
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for key in fields:
            if key not in known:
                nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
                raise UserError(f"{cls.__name__} has no field `{key}`. Did you mean `{nearest}`?")
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            if field.default is dataclasses.MISSING and field.name not in fields:
                raise UserError(f"{cls.__name__} lacks the field `{field.name}`")
        return cls(**fields)

    def _check_fields(self) -> None:
        """Checks the values of all fields against their types and rules.

        Raises:
            UserError: If a value has the wrong type or is out of range.
        """
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            rules = field.metadata
            if "choices" in rules:
                choices = rules["choices"]
                is_choice = getattr(self, field.name) in choices
                self._check(is_choice, f"`{field.name}` must be one of {choices}")
            elif field.type is int:
                self._check_integer(
                    field.name, rules["lower_bound"], rules.get("upper_bound", MAX_INTEGER)
                )
            elif field.type is float:
                self._check_real(field.name, rules.get("range"))
            elif field.type is bool:
                is_boolean = isinstance(getattr(self, field.name), bool)
                self._check(is_boolean, f"`{field.name}` must be true or false")

    def _check(self, holds: bool, rule: str, *names: str) -> None:
        """Raises `UserError` unless `holds`, with the values of `names` or of the rule's fields."""
        if not holds:
            names = names or tuple(re.findall(r"`(\w+)`", rule))
            received = ", ".join(f"{name}={_SHORT.repr(getattr(self, name))}" for name in names)
            raise UserError(f"{rule}. Received: {received}")

    def _check_integer(self, name: str, minimum: int, maximum: int) -> None:
        value = getattr(self, name)
        is_integer = isinstance(value, Integral) and not isinstance(value, bool)
        self._check(is_integer and value >= minimum, f"`{name}` must be an integer >= {minimum}")
        self._check(value <= maximum, f"`{name}` must be an integer <= {maximum}")
        object.__setattr__(self, name, int(value))  # JSON cannot hold those of NumPy

    def _check_real(self, name: str, allowed: Range | None) -> None:
        value = getattr(self, name)
        is_real = isinstance(value, Real) and not isinstance(value, bool)
        # NumPy would convert a bound to float32, so an infinite one.
        is_finite = is_real and abs(value) < math.inf and int(abs(value)) <= sys.float_info.max
        self._check(is_finite, f"`{name}` must be a finite number")
        if allowed is not None:
            self._check(allowed.contains(value), f"`{name}` must {allowed.rule}")
        object.__setattr__(self, name, float(value))  # TOML and JSON may hold 1 instead of 1.0
