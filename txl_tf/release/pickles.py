"""Reads pickles of protocol 2, from the 2019 code or `torch.save`, without running code in them.

`pickle.Unpickler.find_class` restricts only the names: the unpickler still hashes tuples of any
depth, sets attributes of any object and allocates any index of the memo that a file states. So
`pickletools` parses the file, and the few operations that such files need are implemented here.
Every name is replaced by a class or function that the caller lists. Time and memory are
proportional to the size of the file.
"""

import pickletools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO

import numpy as np

from txl_tf.data.files import get_size, open_file
from txl_tf.errors import UserError, explain

MAX_KEY_LENGTH = 4096  # of the keys of dicts: equal keys are compared in full
_INTEGERS = frozenset({"i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"})
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}

Names = Mapping[tuple[str, str], Any]


def read_pickle_file(path: str, names: Names) -> Any:
    """Reads a pickled file or address as `read_pickle` does."""
    size = get_size(path)
    if size is None:  # opening a pipe would block
        raise UserError("it is missing or not a regular file")
    with open_file(path) as file:
        return read_pickle(file, size, names)


def read_pickle(
    file: BinaryIO | Any, size: int, names: Names, load_external: Callable[[Any], Any] | None = None
) -> Any:
    """Returns the object in a pickle of protocol 2; a `str` of Python 2 is `bytes`.

    Args:
        file: The pickle; no data may follow it.
        size: Its size in bytes.
        names: The replacement of each allowed name, by (module, name), in addition to dicts and
            bytes. Objects with attributes must have a method `set_state`.
        load_external: Returns the external object with a given id.

    Raises:
        UserError: If it is damaged, or contains operations or names that are not allowed.
    """
    try:
        found = _run(file, size, {**_NAMES, **names}, load_external)
    except (UserError, OSError):
        raise
    except Exception as error:  # of any kind: a damaged file may hold any operations
        raise UserError(f"it is damaged or not a pickle: {explain(error)}") from error
    if file.read(1):
        raise UserError("it has data after its end")
    return found


def _run(file: Any, size: int, names: Names, load_external: Callable[[Any], Any] | None) -> Any:
    """Performs the operations of a pickle; `pickletools` describes each of them."""
    stack: list[Any] = []
    marks: list[int] = []  # where the items of a tuple, list or dict begin in the stack
    memo: dict[int, Any] = {}
    left = size  # to copy: an argument may be used many times

    def pop_items() -> list[Any]:
        begin = marks.pop()
        items = stack[begin:]
        del stack[begin:]
        return items

    argument: Any
    for operation, argument, at in pickletools.genops(file):
        match operation.name:
            case "BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(argument)
            case "SHORT_BINSTRING" | "BINSTRING":
                stack.append(argument.encode("latin-1"))
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "NONE" | "NEWTRUE" | "NEWFALSE" | "EMPTY_TUPLE":
                stack.append(_CONSTANTS[operation.name])
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "MARK":
                marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(pop_items()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                n_items = int(operation.name[-1])
                stack[-n_items:] = [tuple(stack[-n_items:])]
            case "APPEND" | "APPENDS":
                items = pop_items() if operation.name == "APPENDS" else [stack.pop()]
                stack[-1].extend(items)
            case "SETITEM" | "SETITEMS":
                if operation.name == "SETITEM":
                    marks.append(len(stack) - 2)
                items = pop_items()
                _set_items(stack[-1], zip(items[::2], items[1::2], strict=True))
            case "GLOBAL":
                module, _, name = argument.partition(" ")
                if (module, name) not in names:
                    wrong = ascii(f"{module[:100]}.{name[:100]}")[1:-1]
                    raise UserError(f"the name {wrong} is not allowed in such a file")
                stack.append(names[module, name])
            case "REDUCE" | "NEWOBJ":  # the call of a name
                arguments, function = stack.pop(), stack.pop()
                if type(arguments) is not tuple:
                    raise UserError("the arguments of a call are not a tuple")
                copied = (len(x) for x in arguments if isinstance(x, (str, list, dict)))
                left -= len(arguments) + sum(copied)
                if left < 0:
                    raise UserError("it uses the same objects too often")
                stack.append(function(*arguments))
            case "BUILD":  # sets attributes; those of a dict are not needed
                state = stack.pop()
                if type(stack[-1]) is not dict:
                    stack[-1].set_state(state)
            case "BINPERSID" if load_external:
                stack.append(load_external(stack.pop()))
            case "PROTO" if argument > 2:
                raise UserError(f"it has protocol {argument} of pickle; the 2019 code wrote 2")
            case "PROTO" | "STOP":
                pass
            case name:
                raise UserError(f"the operation {name} is not allowed (at byte {at})")
    return stack.pop()


def _set_items(target: Any, pairs: Iterable[Any]) -> None:
    """Sets items of a dict; keys other than short texts may take very long to hash and compare."""
    if type(target) is not dict:
        raise UserError("it sets items of an object that is not a dict")
    for key, value in pairs:
        if type(key) not in (str, bytes) or len(key) > MAX_KEY_LENGTH:
            raise UserError("a key is not a short text")
        target[key] = value


# Replacements of the names in pickles.


def _make_dict(items: Any = ()) -> dict[Any, Any]:
    """Stands for `OrderedDict(pairs)` and `Counter(dict)`."""
    made: dict[Any, Any] = {}
    _set_items(made, items.items() if type(items) is dict else items)
    return made


def _make_bytes(text: str = "", encoding: str = "latin1") -> bytes:
    """Stands for `_codecs.encode(text, "latin1")`, bytes that Python 3 wrote, and `bytes()`."""
    if encoding != "latin1":
        raise UserError("bytes are not written as latin1")
    return text.encode(encoding)


class Record:
    """An object that has attributes and no behavior; each class of a pickle is a subclass."""

    attributes: Mapping[str | bytes, Any] = {}

    def set_state(self, state: Any) -> None:
        """Sets the attributes by name."""
        if type(state) is not dict:
            raise UserError(f"the attributes of {type(self).__name__} are not a dict")
        self.attributes = state


class _ElementType:
    """Stands for `numpy.dtype`, as in `numpy.dtype("i8", False, True)`."""

    def __init__(self, kind: Any, *_: Any) -> None:
        if decode_text(kind) not in _INTEGERS:
            raise UserError("an array does not hold integers")
        self.dtype = np.dtype(decode_text(kind))

    def set_state(self, state: Any) -> None:
        """Takes (version, byte order, ...); the rest is `None` for integers."""
        if decode_text(state[1]) not in ("<", ">", "|"):
            raise UserError("an array has an unknown byte order")
        self.dtype = self.dtype.newbyteorder(decode_text(state[1]))  # type: ignore[arg-type]


class Array:
    """Stands for `numpy.ndarray`: a row of integers, (n,)."""

    values: np.ndarray = np.zeros(0, np.int64)

    def set_state(self, state: Any) -> None:
        """Takes (version, shape, type, whether it is in Fortran order, its bytes)."""
        _, shape, element_type, _, data = state
        self.values = np.frombuffer(data, element_type.dtype)
        if shape != self.values.shape:
            raise UserError(f"an array of {len(self.values)} integers has another shape")


def decode_text(text: Any) -> str:
    """Returns a text that Python 2 or 3 wrote."""
    if type(text) not in (str, bytes):
        raise UserError(f"a text was expected, not an object of type {type(text).__name__}")
    try:
        return str(text, "utf-8") if type(text) is bytes else text.encode("utf-8").decode("utf-8")
    except UnicodeError as error:  # also of a `str` with a lone surrogate
        raise UserError(f"{text[:60]!a} is not UTF-8") from error


_NAMES: Names = {
    ("collections", "OrderedDict"): _make_dict,
    ("collections", "Counter"): _make_dict,
    ("_codecs", "encode"): _make_bytes,
    ("__builtin__", "bytes"): _make_bytes,
}
ARRAY_NAMES: Names = {
    ("numpy", "dtype"): _ElementType,
    ("numpy", "ndarray"): Array,
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: Array(),
}
