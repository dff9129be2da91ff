"""What a pickle may make: plain data, and stand-ins for the few things that it may name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from txl_tf.errors import UserError

_MAX_DEPTH = 50
# Strings that are equal but not the same are compared in full, as often as a pickle likes.
MAX_KEY_LENGTH = 4096

# What stands for a call of a named thing: from its arguments to what it gives.
Make = Callable[[tuple[Any, ...]], Any]
Names = Mapping[tuple[str, str], Make | None]


class PickleError(UserError):
    """A pickle that is damaged, or asks for what is not allowed."""


@dataclass(frozen=True, eq=False)
class Name:
    """A name in a pickle, which stands for nothing but itself.

    Args:
        module: Where the pickle says that the thing lives; nothing is looked up there.
        name: What it is called there.
        make: What a call of it makes; `None` if it cannot be called.
    """

    module: str
    name: str
    make: Make | None = None

    def call(self, args: tuple[Any, ...]) -> Any:
        """Makes what a call of the thing would give."""
        if self.make is None:
            raise PickleError(f"{self.module}.{self.name} cannot be called")
        return self.make(args)


class Draft:
    """What a pickle first makes and then fills."""

    def fill(self, state: Any) -> None:
        """Takes the state that the pickle gives."""
        raise NotImplementedError


class Record(Draft):
    """An object that has attributes and does nothing.

    Args:
        kind: The name of its class.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.attributes: dict[str | bytes, Any] = {}

    def fill(self, state: Any) -> None:
        """Takes the attributes."""
        if self.attributes or type(state) is not dict:
            raise PickleError(f"the attributes of {self.kind} are not one dict")
        self.attributes = state


def make_records_of(kind: str) -> Make:
    """Returns what makes records of a class, which is called without arguments."""

    def make(args: tuple[Any, ...]) -> Record:
        if args:
            raise PickleError(f"{kind} takes no arguments")
        return Record(kind)

    return make


def check_keys(keys: Iterable[Any]) -> None:
    """Checks that the keys of a dict are strings that are compared in no time.

    Raises:
        PickleError: If one is not.
    """
    for key in keys:
        if type(key) is not str and type(key) is not bytes:
            raise PickleError(f"a key is of type {type(key).__name__}, not a string")
        if len(key) > MAX_KEY_LENGTH:
            raise PickleError(f"a key is longer than {MAX_KEY_LENGTH}")


def check_depth(top: Any) -> None:
    """Checks that nothing is nested deeper than is good for those who use it.

    Each thing counts where it is highest, so that neither what is shared nor what holds itself
    takes time.

    Raises:
        PickleError: If something is.
    """
    level, seen = [top], {id(top)}
    for _ in range(_MAX_DEPTH):
        below = []
        for item in level:
            for part in _list_parts(item):
                if type(part) in (list, tuple, dict, Record) and id(part) not in seen:
                    seen.add(id(part))
                    below.append(part)
        if not below:
            return
        level = below
    raise PickleError(f"it is nested deeper than {_MAX_DEPTH}")


def _list_parts(item: Any) -> Iterable[Any]:
    if type(item) in (list, tuple):
        return item
    if type(item) is dict:
        return item.values()
    return (item.attributes,) if type(item) is Record else ()
