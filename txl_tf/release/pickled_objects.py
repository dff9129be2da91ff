"""The objects that a pickle may make: plain data, and stand-ins for the few things it may name."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from txl_tf.errors import UserError

_MAX_DEPTH = 50
# Strings that are equal but not identical are compared in full, as often as a pickle likes.
MAX_KEY_LENGTH = 4096
_TYPES = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"})
_BYTE_ORDERS = frozenset({"<", ">", "|"})
_MAX_AXES = 8

# Makes the object that stands for the result of a call, from the call's arguments.
Make = Callable[[tuple[Any, ...]], Any]
Names = Mapping[tuple[str, str], Make | None]


class PickleError(UserError):
    """A pickle that is damaged, or asks for something that is not allowed."""


@dataclass(frozen=True, eq=False)
class Name:
    """A name in a pickle, which is never looked up.

    Args:
        module: The module that the pickle states.
        name: The name in that module.
        make: Makes the result of a call; `None` if the name cannot be called.
    """

    module: str
    name: str
    make: Make | None = None

    def call(self, args: tuple[Any, ...]) -> Any:
        """Returns the object that stands for the result of a call."""
        if self.make is None:
            raise PickleError(f"{self.module}.{self.name} cannot be called")
        return self.make(args)


class Draft:
    """An object that a pickle first makes and then fills."""

    def fill(self, state: Any) -> None:
        """Takes the state that the pickle gives."""
        raise NotImplementedError


class Record(Draft):
    """An object that has attributes and no behaviour.

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
    """Returns a function that makes records of a class, and takes no arguments."""

    def make(args: tuple[Any, ...]) -> Record:
        if args:
            raise PickleError(f"{kind} takes no arguments")
        return Record(kind)

    return make


class ElementType(Draft):
    """The element type of an array of numbers.

    Args:
        kind: Kind and size as NumPy writes them, as in "i8".
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._byte_order = "<"

    @property
    def dtype(self) -> np.dtype:
        """The NumPy dtype."""
        return np.dtype(self._byte_order + self._kind)

    def fill(self, state: Any) -> None:
        """Takes the byte order; numbers have no other state."""
        is_state = type(state) is tuple and len(state) >= 5
        if not is_state or any(part is not None for part in state[2:5]):
            raise PickleError("an array does not hold plain numbers")
        byte_order = decode_text(state[1])
        if byte_order not in _BYTE_ORDERS:
            raise PickleError("an array has an unknown byte order")
        self._byte_order = byte_order


class Array(Draft):
    """A NumPy array, empty until it is filled."""

    def __init__(self) -> None:
        self.values: np.ndarray = np.zeros(0, np.int64)

    def fill(self, state: Any) -> None:
        """Takes (version, shape, type, whether it is in Fortran order, its bytes)."""
        if type(state) is not tuple or len(state) != 5 or type(state[3]) not in (bool, int):
            raise PickleError("the state of an array is invalid")
        _, shape, element_type, is_fortran, data = state
        self.values = view_array(data, element_type, shape, "F" if is_fortran else "C")


def view_array(data: Any, element_type: Any, shape: Any, order: Any) -> np.ndarray:
    """Returns an array of bytes in a pickle, without a copy.

    Args:
        data: The bytes.
        element_type: The `ElementType` of the array.
        shape: The shape of the array.
        order: "C" if the last axis varies fastest, "F" if the first one does.

    Raises:
        PickleError: If the arguments do not fit each other.
    """
    if type(element_type) is not ElementType or type(data) not in (bytes, memoryview):
        raise PickleError("an array does not hold plain numbers")
    check_sizes(shape)
    dtype = element_type.dtype
    if math.prod(shape) * dtype.itemsize != len(data) or order not in ("C", "F"):
        raise PickleError(f"an array has {len(data)} bytes, which does not fit its shape")
    if not len(data):
        return np.zeros(shape, dtype)
    return np.frombuffer(data, dtype).reshape(shape, order=order)


def check_sizes(sizes: Any) -> None:
    """Checks that an object can be the shape of an array.

    Raises:
        PickleError: If it cannot.
    """
    is_shape = type(sizes) is tuple and len(sizes) <= _MAX_AXES
    if not is_shape or any(type(size) is not int or not 0 <= size < 2**48 for size in sizes):
        raise PickleError("the shape of an array is invalid")


def check_keys(keys: Iterable[Any]) -> None:
    """Checks that the keys of a dict are strings that are fast to compare.

    Raises:
        PickleError: If one is not.
    """
    for key in keys:
        if type(key) is not str and type(key) is not bytes:
            raise PickleError(f"a key is of type {type(key).__name__}, not a string")
        if len(key) > MAX_KEY_LENGTH:
            raise PickleError(f"a key is longer than {MAX_KEY_LENGTH}")


def check_depth(top: Any) -> None:
    """Checks that an object is not nested deeper than its users can handle.

    Each part counts where it is highest, so that neither shared objects nor objects that contain
    themselves take time.

    Raises:
        PickleError: If it is.
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


def decode_text(text: Any) -> str:
    """Returns a text that Python 2 may have written.

    Raises:
        PickleError: If it is not a text.
    """
    if type(text) is str:
        return text
    if type(text) is not bytes:
        raise PickleError(f"a text was expected, not an object of type {type(text).__name__}")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PickleError(f"{text[:60]!a} is not UTF-8") from error


def _make_dict(args: tuple[Any, ...]) -> dict[Any, Any]:
    """Stands for OrderedDict and Counter, whose order all dicts have."""
    if not args:
        return {}
    if len(args) == 1 and type(args[0]) is dict:
        return args[0]
    pairs: list[Any] = args[0] if len(args) == 1 and type(args[0]) is list else [()]
    if any(type(pair) not in (list, tuple) or len(pair) != 2 for pair in pairs):
        raise PickleError("a dict is not made of pairs")
    check_keys(key for key, _ in pairs)
    return dict(pairs)


def _make_bytes(args: tuple[Any, ...]) -> bytes:
    """Stands for `_codecs.encode(text, "latin1")`: bytes in a pickle that Python 2 can read."""
    if not all(type(arg) is str for arg in args) or args[1:] not in (("latin1",), ("latin-1",)):
        raise PickleError("bytes are not written as latin1")
    return args[0].encode("latin-1")


def _make_empty_bytes(args: tuple[Any, ...]) -> bytes:
    if args:
        raise PickleError("bytes are not written as latin1")
    return b""


def _make_object(args: tuple[Any, ...]) -> Any:
    """Stands for `copyreg._reconstructor(cls, object, None)`."""
    is_plain = len(args) == 3 and type(args[0]) is type(args[1]) is Name and args[2] is None
    if not is_plain or args[1].name != "object":
        raise PickleError("an object has no class")
    return args[0].call(())


def _make_element_type(args: tuple[Any, ...]) -> ElementType:
    kind = decode_text(args[0]) if args else ""
    if kind not in _TYPES:
        raise PickleError("an array does not hold plain numbers")
    return ElementType(kind)


def _make_array(args: tuple[Any, ...]) -> Array:
    if not args or type(args[0]) is not Name or args[0].name != "ndarray":
        raise PickleError("an array is of an unknown class")
    return Array()


def _make_filled_array(args: tuple[Any, ...]) -> Array:
    """Stands for `_frombuffer(bytes, dtype, shape, order)` of protocol 5."""
    if len(args) != 4:
        raise PickleError("the state of an array is invalid")
    array = Array()
    array.values = view_array(*args)
    return array


def _make_number(args: tuple[Any, ...]) -> int | float | bool:
    """Stands for a NumPy scalar."""
    if len(args) != 2:
        raise PickleError("the state of a number is invalid")
    return view_array(args[1], args[0], (), "C").item()


_OBJECTS: dict[str, Make | None] = {"object": None, "bytes": _make_empty_bytes}
_MULTIARRAY: dict[str, Make | None] = {"_reconstruct": _make_array, "scalar": _make_number}
_MEMBERS: dict[str, dict[str, Make | None]] = {
    "__builtin__": _OBJECTS,
    "builtins": _OBJECTS,
    "copy_reg": {"_reconstructor": _make_object},
    "copyreg": {"_reconstructor": _make_object},
    "collections": {"OrderedDict": _make_dict, "Counter": _make_dict},
    "_codecs": {"encode": _make_bytes},
    "numpy": {"dtype": _make_element_type, "ndarray": None},
    "numpy.core.multiarray": _MULTIARRAY,
    "numpy._core.multiarray": _MULTIARRAY,
    "numpy.core.numeric": {"_frombuffer": _make_filled_array},
    "numpy._core.numeric": {"_frombuffer": _make_filled_array},
}
# The names that pickles of dicts, objects and arrays of numbers need.
NAMES = {
    (module, name): make for module, members in _MEMBERS.items() for name, make in members.items()
}
