"""Reads pickles of plain data, NumPy arrays and a few classes, without executing anything.

Python's unpickler calls whatever a pickle names, allocates whatever length it states, and hashes
whatever it uses as a key. So `pickletools` takes the pickle apart first: its operations, lengths
and memo must be those of a pickler that writes plain data. Then `pickle.Unpickler` reads it, and
finds stand-ins under the names that the caller lists, and nothing else. Time and memory are in
proportion to the size of the file.
"""

import io
import math
import os
import pickle
import pickletools
import stat
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np

from txl_tf.data.files import is_remote, open_file
from txl_tf.errors import UserError, explain

_NOT_ALLOWED = {
    *("DUP", "EMPTY_SET", "FROZENSET", "ADDITEMS", "EXT1", "EXT2", "EXT4", "LONG4"),
    *("NEWOBJ_EX", "NEXT_BUFFER", "READONLY_BUFFER"),
}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}
_TUPLES = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
MAX_KEY_LENGTH = 4096
# Tuples and long strings take time where they are keys: the hash of a tuple is that of all parts,
# at any depth, and equal strings are compared in full. Picklers write few and do not reuse them.
_MAX_TUPLES, _MAX_USES = 10_000, 4
_TYPES = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"})
_MAX_AXES = 8

Names = Mapping[tuple[str, str], Any]
Load = Callable[[Any], Any] | None


def read_pickle_file(path: str | os.PathLike[str], names: Names) -> Any:
    """Reads a pickled file, which must be a regular one, as `read_pickle` does."""
    if is_remote(os.fspath(path)):
        with open_file(os.fspath(path)) as file:
            return read_pickle(io.BytesIO(file.read()), names)
    # Opening a pipe would block, and a device has no end.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise UserError("it is not a regular file")
    with open(path, "rb") as file:
        return read_pickle(file, names)


def read_pickle(file: BinaryIO, names: Names, load_persistent: Load = None) -> Any:
    """Returns the object in a pickle of any protocol; a `str` of Python 2 is `bytes`.

    Args:
        file: The pickle; nothing may follow it.
        names: What stands for each name that it may contain, by (module, name).
        load_persistent: Returns the external object with a given id.
    """
    size = file.seek(0, os.SEEK_END)
    if not size:
        raise UserError("it is empty")
    try:
        file.seek(0)
        end = _check_operations(file)
        if end < size:
            raise UserError("it has data after its end")
        file.seek(0)
        return _Unpickler(file, names, load_persistent, size).load()
    except (UserError, OSError):
        raise
    except Exception as error:  # neither module documents what it raises
        raise UserError(f"it is damaged or not a pickle: {explain(error)}") from error


def _check_operations(file: BinaryIO) -> int:
    """Checks the operations of a pickle, and returns its end."""
    memo: dict[int, bool] = {}
    is_costly: bool | None = None  # whether the object on top of the stack is, if that is known
    n_tuples = n_uses = position = 0
    argument: Any  # an index, a number or a string
    for count, (operation, argument, at) in enumerate(pickletools.genops(file)):
        name, position = operation.name, at or 0
        if name in ("FRAME", "PROTO"):
            continue
        if name in _NOT_ALLOWED:
            raise UserError(f"the operation {name} is not allowed (at byte {at})")
        if isinstance(argument, int) and abs(argument) >= 2**64:
            raise UserError(f"a number is too large (at byte {at})")  # many have the same hash
        if name in _PUTS:
            index = len(memo) if argument is None else argument
            if is_costly is None or index > count:  # the unpickler allocates all entries up to it
                raise UserError(f"its memo has an entry {index} too early (at byte {at})")
            memo[index] = is_costly
            continue
        if name in _GETS:
            is_costly = memo[argument]
            n_uses += is_costly
        elif name in ("POP", "POP_MARK", "MARK"):
            is_costly = None
        else:
            is_text = isinstance(argument, (str, bytes, bytearray))
            is_costly = name in _TUPLES or (is_text and len(argument) > MAX_KEY_LENGTH)
            n_tuples += name in _TUPLES
        if n_uses > _MAX_USES or n_tuples > _MAX_TUPLES:
            raise UserError(f"it uses tuples or long strings too often (at byte {at})")
    return position + 1


class _Unpickler(pickle.Unpickler):
    """Finds stand-ins for names; `size` is that of the pickle in bytes."""

    def __init__(self, file: BinaryIO, names: Names, load_persistent: Load, size: int) -> None:
        super().__init__(file, encoding="bytes")
        self._names = {**names, **dict.fromkeys(_DICTS, self._make_dict)}
        self._names["_codecs", "encode"] = self._make_bytes
        self._load_persistent = load_persistent
        self._left = size  # to copy: an argument may be used many times

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._names:
            wrong = ascii(f"{module[:100]}.{name[:100]}")[1:-1]
            raise UserError(f"the name {wrong} is not allowed in such a file")
        return self._names[module, name]

    def persistent_load(self, identity: Any) -> Any:
        if self._load_persistent is None:
            raise UserError("it refers to objects outside of it")
        return self._load_persistent(identity)

    def _make_dict(self, items: Any = ()) -> "_Dict":
        """Stands for OrderedDict and Counter, whose order all dicts have."""
        self._count(items)
        return _Dict(items)

    def _make_bytes(self, text: Any, encoding: Any) -> "_Bytes":
        """Stands for `_codecs.encode(text, "latin1")`: bytes in a pickle for Python 2."""
        if type(text) is not str or encoding not in ("latin1", "latin-1"):
            raise UserError("bytes are not written as latin1")
        self._count(text)
        return _Bytes(text.encode("latin-1"))

    def _count(self, items: Any) -> None:
        self._left -= len(items)
        if self._left < 0:
            raise UserError("it uses the same objects too often")


# What stands for the names in pickles of objects with attributes and of arrays of numbers.


class _Dict(dict[Any, Any]):
    """An OrderedDict or a Counter; attributes of it are ignored."""

    def __setstate__(self, state: Any) -> None:
        pass


class _Bytes(bytes):
    """Bytes that cannot be keys, whatever their length."""

    __hash__ = None  # type: ignore[assignment]


class Record:
    """An object that has attributes and no behavior; each class of a pickle is a subclass."""

    attributes: Mapping[str | bytes, Any] = {}

    def __setstate__(self, state: Any) -> None:
        if self.attributes or type(state) is not dict:
            raise UserError(f"the attributes of {type(self).__name__} are not one dict")
        self.attributes = state


def _reconstruct_object(kind: Any, base: Any, state: Any) -> Record:
    """Stands for `copyreg._reconstructor(cls, object, None)`."""
    is_record = isinstance(kind, type) and issubclass(kind, Record)
    if not is_record or (base, state) != (object, None):
        raise UserError("an object has no class")
    return kind()


class ElementType:
    """Stands for `numpy.dtype`, as in `numpy.dtype("i8", False, True)`."""

    def __init__(self, kind: Any, *_: Any) -> None:
        if decode_text(kind) not in _TYPES:
            raise UserError("an array does not hold plain numbers")
        self.dtype = np.dtype(decode_text(kind))

    def __setstate__(self, state: Any) -> None:
        """Takes the byte order; numbers have no other state."""
        if type(state) is not tuple or len(state) < 5 or any(x is not None for x in state[2:5]):
            raise UserError("an array does not hold plain numbers")
        byte_order: Any = decode_text(state[1])
        if byte_order not in ("<", ">", "|"):
            raise UserError("an array has an unknown byte order")
        self.dtype = self.dtype.newbyteorder(byte_order)


class Array:
    """Stands for `numpy.ndarray`; empty until it is filled."""

    values: np.ndarray = np.zeros(0, np.int64)

    def __setstate__(self, state: Any) -> None:
        """Takes (version, shape, type, whether it is in Fortran order, its bytes)."""
        if type(state) is not tuple or len(state) != 5 or type(state[3]) not in (bool, int):
            raise UserError("the state of an array is invalid")
        _, shape, element_type, is_fortran, data = state
        self.values = _view_array(data, element_type, shape, "F" if is_fortran else "C")


def _reconstruct_array(kind: Any, *_: Any) -> Array:
    """Stands for `_reconstruct(numpy.ndarray, (0,), "b")`."""
    if kind is not Array:
        raise UserError("an array is of an unknown class")
    return Array()


def _make_filled_array(*parts: Any) -> Array:
    """Stands for `_frombuffer(data, type, shape, order)` of protocol 5."""
    array = Array()
    array.values = _view_array(*parts)
    return array


def _view_array(data: Any, element_type: Any, shape: Any, order: Any) -> np.ndarray:
    """Returns an array of bytes in a pickle, without a copy."""
    if type(element_type) is not ElementType or not isinstance(data, (bytes, bytearray)):
        raise UserError("an array does not hold plain numbers")
    check_sizes(shape)
    dtype = element_type.dtype
    if math.prod(shape) * dtype.itemsize != len(data) or order not in ("C", "F"):
        raise UserError(f"an array has {len(data)} bytes, which does not fit its shape")
    if not len(data):
        return np.zeros(shape, dtype)
    return np.frombuffer(data, dtype).reshape(shape, order=order)


def check_sizes(sizes: Any) -> None:
    """Checks that an object can be the shape of an array."""
    is_shape = type(sizes) is tuple and len(sizes) <= _MAX_AXES
    if not is_shape or any(type(size) is not int or not 0 <= size < 2**48 for size in sizes):
        raise UserError("the shape of an array is invalid")


def decode_text(text: Any) -> str:
    """Returns a text that Python 2 may have written."""
    if type(text) is str:
        return text
    if type(text) is not bytes:
        raise UserError(f"a text was expected, not an object of type {type(text).__name__}")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{text[:60]!a} is not UTF-8") from error


_DICTS = (("collections", "OrderedDict"), ("collections", "Counter"))
# The names that pickles of objects and of arrays of numbers need; `read_pickle` adds dicts.
NAMES: dict[tuple[str, str], Any] = {
    **{(module, "object"): object for module in ("__builtin__", "builtins")},
    **{(module, "bytes"): lambda: b"" for module in ("__builtin__", "builtins")},
    **{(module, "_reconstructor"): _reconstruct_object for module in ("copy_reg", "copyreg")},
    ("numpy", "dtype"): ElementType,
    ("numpy", "ndarray"): Array,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct_array,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct_array,
    ("numpy.core.numeric", "_frombuffer"): _make_filled_array,
    ("numpy._core.numeric", "_frombuffer"): _make_filled_array,
}
