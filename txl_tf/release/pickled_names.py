"""The names that pickles of plain data and arrays need, and what stands for each."""

import math
from typing import Any

import numpy as np

from txl_tf.release.plain_data import Draft, Make, Name, PickleError, check_keys

_TYPES = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"})
_BYTE_ORDERS = frozenset({"<", ">", "|"})
_MAX_AXES = 8


class ElementType(Draft):
    """What an array holds: numbers of one kind.

    Args:
        kind: Kind and size as numpy writes them, as in "i8".
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._byte_order = "<"

    @property
    def dtype(self) -> np.dtype:
        """As numpy knows it."""
        return np.dtype(self._byte_order + self._kind)

    def fill(self, state: Any) -> None:
        """Takes the byte order: numbers have no other state."""
        if (
            type(state) is not tuple
            or len(state) < 5
            or any(part is not None for part in state[2:5])
        ):
            raise PickleError("an array holds no plain numbers")
        byte_order = decode_text(state[1])
        if byte_order not in _BYTE_ORDERS:
            raise PickleError("an array has an unknown byte order")
        self._byte_order = byte_order


class Array(Draft):
    """A numpy array, empty until it is filled."""

    def __init__(self) -> None:
        self.values: np.ndarray = np.zeros(0, np.int64)

    def fill(self, state: Any) -> None:
        """Takes (version, shape, type, whether it goes by columns, its bytes)."""
        if type(state) is not tuple or len(state) != 5 or type(state[3]) not in (bool, int):
            raise PickleError("the state of an array is none")
        _, shape, element_type, by_columns, data = state
        self.values = view_array(data, element_type, shape, "F" if by_columns else "C")


def view_array(data: Any, element_type: Any, shape: Any, order: Any) -> np.ndarray:
    """Returns an array of bytes that a pickle holds, without a copy.

    Args:
        data: The bytes.
        element_type: What they are.
        shape: Of the array.
        order: "C" if the last axis varies fastest, "F" if the first one does.

    Raises:
        PickleError: If these do not belong together.
    """
    if type(element_type) is not ElementType or type(data) not in (bytes, memoryview):
        raise PickleError("an array holds no plain numbers")
    check_sizes(shape)
    dtype = element_type.dtype
    if math.prod(shape) * dtype.itemsize != len(data) or order not in ("C", "F"):
        raise PickleError(f"an array has {len(data)} bytes, which is not what its shape needs")
    if not len(data):
        return np.zeros(shape, dtype)
    return np.frombuffer(data, dtype).reshape(shape, order=order)


def check_sizes(sizes: Any) -> None:
    """Checks that something can be a shape.

    Raises:
        PickleError: If it cannot.
    """
    is_shape = type(sizes) is tuple and len(sizes) <= _MAX_AXES
    if not is_shape or any(type(size) is not int or not 0 <= size < 2**48 for size in sizes):
        raise PickleError("the shape of an array is none")


def decode_text(text: Any) -> str:
    """Returns a text that Python 2 may have written.

    Raises:
        PickleError: If it is none.
    """
    if type(text) is str:
        return text
    if type(text) is not bytes:
        raise PickleError(f"what should be a text is of type {type(text).__name__}")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PickleError(f"{text[:60]!a} is no UTF-8") from error


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


def _make_no_bytes(args: tuple[Any, ...]) -> bytes:
    if args:
        raise PickleError("bytes are not written as latin1")
    return b""


def _make_object(args: tuple[Any, ...]) -> Any:
    """Stands for `copyreg._reconstructor(cls, object, None)`."""
    is_plain = len(args) == 3 and type(args[0]) is type(args[1]) is Name and args[2] is None
    if not is_plain or args[1].name != "object":
        raise PickleError("an object is of no class")
    return args[0].call(())


def _make_element_type(args: tuple[Any, ...]) -> ElementType:
    kind = decode_text(args[0]) if args else ""
    if kind not in _TYPES:
        raise PickleError("an array holds no plain numbers")
    return ElementType(kind)


def _make_array(args: tuple[Any, ...]) -> Array:
    if not args or type(args[0]) is not Name or args[0].name != "ndarray":
        raise PickleError("an array is of an unknown class")
    return Array()


def _make_filled_array(args: tuple[Any, ...]) -> Array:
    """Stands for `_frombuffer(bytes, dtype, shape, order)`, of protocol 5."""
    if len(args) != 4:
        raise PickleError("the state of an array is none")
    data, element_type, shape, order = args
    array = Array()
    array.values = view_array(data, element_type, shape, order)
    return array


def _make_number(args: tuple[Any, ...]) -> int | float | bool:
    """Stands for a number of numpy's."""
    if len(args) != 2:
        raise PickleError("the state of a number is none")
    return view_array(args[1], args[0], (), "C").item()


_OBJECTS: dict[str, Make | None] = {"object": None, "bytes": _make_no_bytes}
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
# What a pickle of dicts, objects and arrays of numbers may name.
NAMES = {
    (module, name): make for module, members in _MEMBERS.items() for name, make in members.items()
}
