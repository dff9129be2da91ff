"""Reads pickles without executing them.

A pickle is a program for a machine with a stack and a memo. Python's own machine calls whatever
the program names, and allocates memory for whatever length it states. This machine makes only
plain data (None, bool, int, float, str, bytes, list, tuple, dict). A name must be on the caller's
list, which also says what is made in its place; nothing is looked up or imported. Lengths are
compared with the rest of the file before anything is allocated, and an object that is used again
is not copied. An operation of one byte can make an empty list of 60 bytes, so a pickle may make
one list, tuple, dict or object for every 8 bytes of the file, far more than any pickler does.
Time and memory stay in proportion to the size of the file: at most about 50 bytes of memory for
each byte.

The operations are described in `pickletools` of the standard library.
"""

import contextlib
import gc
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from txl_tf.release.pickle_values import ValueReader
from txl_tf.release.pickled_objects import Draft, Name, Names, PickleError, check_depth, check_keys

_NEWEST_PROTOCOL = 5
_MAX_MARKS = 1000
_MAX_STACK = 2**16  # picklers push at most 1,000 objects at a time
_MAX_OPERATIONS = 2**25  # four times as many as lm1b's 800,000 symbols take
# An operation of one byte can make an object of 60 to 300 bytes. No pickler makes so many: even
# Python 2's OrderedDict, with a list for each pair, takes 12 bytes of the file or more for each.
_FREE_OBJECTS = 2**16
_BYTES_PER_OBJECT = 8
_BYTES_PER_MEMO = 4
_COST_OF_PAIR = 8
_OPERATIONS_BETWEEN_CHECKS = 2**14
_STOP = ord(".")
_DAMAGED = "it is damaged or not a pickle"

LoadPersistent = Callable[[Any], Any]


def read_pickle_file(path: str | os.PathLike[str], names: Names) -> Any:
    """Reads a pickled file.

    Args:
        path: The file. It stays mapped into memory while a large string of it is in use.
        names: As in `read_pickle`.

    Returns:
        As `read_pickle`.

    Raises:
        PickleError: As `read_pickle`, and if the file is empty or not a regular file.
        OSError: If the file cannot be opened.
    """
    # Opening a pipe would block, and a device has no end.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise PickleError("it is not a regular file")
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise PickleError("it is empty")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return read_pickle(data, names)


def read_pickle(
    data: bytes | mmap.mmap, names: Names, load_persistent: LoadPersistent | None = None
) -> Any:
    """Reads a pickle of any protocol.

    Args:
        data: The pickle.
        names: The names that it may contain, (module, name), and what a call of each makes.
        load_persistent: Returns the external object with a given id.

    Returns:
        The object in the pickle. A `str` of Python 2 is `bytes`; `bytes` of more than 64 KiB are a
        `memoryview` of `data`. Lists, tuples, dicts and records are nested up to 50 deep.

    Raises:
        PickleError: If the pickle is damaged, or asks for something that is not allowed.
    """
    with _suspend_garbage_collection():
        top = PickleMachine(data, names, load_persistent).run()
        check_depth(top)
    return top


@contextlib.contextmanager
def _suspend_garbage_collection() -> Iterator[None]:
    """Keeps Python from searching for cycles, again and again, in data that only grows."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class PickleMachine(ValueReader):
    """The machine that runs a pickle; the arguments are those of `read_pickle`."""

    def __init__(
        self, data: bytes | mmap.mmap, names: Names, load_persistent: LoadPersistent | None
    ) -> None:
        super().__init__(data)
        self._names = names
        self._load_persistent = load_persistent
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the rest of the stack, cut at the marks
        self._memo: dict[int, Any] = {}
        # A call may copy all of its arguments, and they may come from the memo many times.
        self._work_left = 2 * len(data) + 2**16
        self._objects_left = _FREE_OBJECTS + len(data) // _BYTES_PER_OBJECT
        self._max_memo = _FREE_OBJECTS + len(data) // _BYTES_PER_MEMO
        self._found: dict[tuple[str, str], Name] = {}
        self._operations: list[Callable[[], None]] = [self._refuse] * 256
        for opcode, operation in self._list_operations().items():
            self._operations[ord(opcode)] = operation

    def run(self) -> Any:
        """Runs the program.

        Returns:
            The object that it leaves on the stack.

        Raises:
            PickleError: If it is damaged, or asks for something that is not allowed.
        """
        start = 0
        try:
            for _ in range(_MAX_OPERATIONS // _OPERATIONS_BETWEEN_CHECKS):
                for _ in range(_OPERATIONS_BETWEEN_CHECKS):
                    start = self._at
                    opcode = self._data[start]
                    self._at = start + 1
                    if opcode == _STOP:
                        return self._finish()
                    self._operations[opcode]()
                if len(self._stack) + sum(map(len, self._below)) > _MAX_STACK:
                    raise PickleError(f"its stack holds more than {_MAX_STACK:,} objects")
            raise PickleError(f"it has more than {_MAX_OPERATIONS:,} operations")
        except PickleError as error:
            raise PickleError(f"{error} (at byte {start})") from error
        except IndexError as error:
            if self._at >= self._size:
                raise PickleError("it is truncated") from error
            raise PickleError(f"{_DAMAGED} (at byte {start})") from error
        except (ArithmeticError, ValueError) as error:
            raise PickleError(f"{_DAMAGED} (at byte {start})") from error
        finally:  # the operations refer to the machine, and would keep its memo alive
            self._memo, self._operations = {}, []

    def _list_operations(self) -> dict[str, Callable[[], None]]:
        """Returns all operations by the characters that stand for them."""
        return {
            "\x80": self._check_protocol,
            "\x95": lambda: self.check_left(self.take_number(8)),  # the length of a frame
            # Constants, numbers and strings.
            "N": lambda: self._push(None),
            "\x88": lambda: self._push(True),
            "\x89": lambda: self._push(False),
            "I": lambda: self._push(self.take_int_or_bool_line()),
            "L": lambda: self._push(self.take_int_line()),
            "J": lambda: self._push(self.take_signed()),
            "K": lambda: self._push(self.take_byte()),
            "M": lambda: self._push(self.take_number(2)),
            "\x8a": lambda: self._push(self.take_long(1)),
            "\x8b": lambda: self._push(self.take_long(4)),
            "F": lambda: self._push(self.take_float_line()),
            "G": lambda: self._push(self.take_float()),
            "S": lambda: self._push(self.take_bytes_line()),
            "U": lambda: self._push(self.take_bytes(1)),
            "T": lambda: self._push(self.take_bytes(4)),
            "C": lambda: self._push(self.take_bytes(1)),
            "B": lambda: self._push(self.take_bytes(4)),
            "\x8e": lambda: self._push(self.take_bytes(8)),
            "\x96": lambda: self._push(self.take_bytes(8)),  # a bytearray
            "V": lambda: self._push(self.take_text_line()),
            "\x8c": lambda: self._push(self.take_text(1)),
            "X": lambda: self._push(self.take_text(4)),
            "\x8d": lambda: self._push(self.take_text(8)),
            # Lists, tuples and dicts.
            "]": lambda: self._push_object([]),
            "l": lambda: self._push_object(self._pop_mark()),
            "a": lambda: self._extend([self._stack.pop()]),
            "e": lambda: self._extend(self._pop_mark()),
            ")": lambda: self._push(()),
            "t": lambda: self._push_object(tuple(self._pop_mark())),
            "\x85": lambda: self._push_tuple(1),
            "\x86": lambda: self._push_tuple(2),
            "\x87": lambda: self._push_tuple(3),
            "}": lambda: self._push_object({}),
            "d": self._push_dict,
            "s": self._set_item,
            "u": lambda: self._update(self._pop_mark()),
            # The stack and the memo.
            "(": self._push_mark,
            "0": self._pop,
            "1": self._drop_marked,
            "2": lambda: self._push(self._stack[-1]),
            "p": lambda: self._put(self.take_int_line()),
            "q": lambda: self._put(self.take_byte()),
            "r": lambda: self._put(self.take_number(4)),
            "\x94": lambda: self._put(len(self._memo)),
            "g": lambda: self._get(self.take_int_line()),
            "h": lambda: self._get(self.take_byte()),
            "j": lambda: self._get(self.take_number(4)),
            # Names, calls and references to other objects.
            "c": lambda: self._push(self._take_name()),
            "\x93": self._push_name,
            "R": self._call,
            "\x81": self._call,
            "\x92": self._call_with_keywords,
            "o": self._call_marked,
            "i": lambda: self._push_call(self._take_name(), tuple(self._pop_mark())),
            "b": self._build,
            "P": lambda: self._load(self.take_name_line()),
            "Q": lambda: self._load(self._stack.pop()),
        }

    def _finish(self) -> Any:
        if len(self._stack) != 1 or self._below:
            raise PickleError("it does not end with one object")
        if self._at < self._size:
            raise PickleError("it has data after its end")
        return self._stack[0]

    def _refuse(self) -> NoReturn:
        opcode = self._data[self._at - 1 : self._at]
        raise PickleError(f"the operation {opcode!r} is unknown or not allowed")

    def _check_protocol(self) -> None:
        protocol = self.take_byte()
        if protocol > _NEWEST_PROTOCOL:
            raise PickleError(f"its protocol {protocol} is unknown")

    # The stack and the memo.

    def _push(self, item: Any) -> None:
        self._stack.append(item)

    def _push_object(self, item: Any) -> None:
        """Pushes a new list, tuple, dict or other object; their number is limited."""
        self._objects_left -= 1
        if self._objects_left < 0:
            raise PickleError(
                "it makes more than one list, tuple, dict or object for every "
                f"{_BYTES_PER_OBJECT} bytes"
            )
        self._stack.append(item)

    def _pop(self) -> None:
        """Pops the top of the stack, which may be a mark."""
        if self._stack:
            self._stack.pop()
        else:
            self._pop_mark()

    def _push_mark(self) -> None:
        if len(self._below) == _MAX_MARKS:
            raise PickleError(f"it is nested deeper than {_MAX_MARKS}")
        self._below.append(self._stack)
        self._stack = []

    def _pop_mark(self) -> list[Any]:
        """Pops and returns everything above the last mark."""
        items = self._stack
        self._stack = self._below.pop()
        return items

    def _drop_marked(self) -> None:
        self._pop_mark()

    def _put(self, index: int) -> None:
        """Stores the top of the stack in the memo."""
        self._memo[index] = self._stack[-1]
        if len(self._memo) > self._max_memo:
            raise PickleError(
                f"it stores more than one object for every {_BYTES_PER_MEMO} bytes in its memo"
            )

    def _get(self, index: int) -> None:
        """Pushes an object of the memo."""
        if index not in self._memo:
            raise PickleError(f"{_DAMAGED}: its memo has no entry {index}")
        self._stack.append(self._memo[index])

    # Lists, tuples and dicts.

    def _push_tuple(self, count: int) -> None:
        if len(self._stack) < count:
            raise PickleError(_DAMAGED)
        items = tuple(self._stack[-count:])
        del self._stack[-count:]
        self._push_object(items)

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise PickleError(f"it appends to an object of type {type(target).__name__}")
        target += items

    def _update(self, items: list[Any]) -> None:
        """Adds alternating keys and values to the dict on top of the stack."""
        target = self._stack[-1]
        if type(target) is not dict:
            raise PickleError(f"it sets keys of an object of type {type(target).__name__}")
        keys = items[::2]
        check_keys(keys)
        target.update(zip(keys, items[1::2], strict=True))

    def _push_dict(self) -> None:
        items = self._pop_mark()
        self._push_object({})
        self._update(items)

    def _set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._update([key, value])

    # Names, calls and references to other objects.

    def _find(self, module: Any, name: Any) -> Name:
        """Returns the stand-in for a name, if the name is allowed."""
        if type(module) is not str or type(name) is not str:
            raise PickleError("a name is not a string")
        if (module, name) not in self._names:
            wrong = ascii(f"{module[:100]}.{name[:100]}")[1:-1]
            raise PickleError(f"the name {wrong} is not allowed in such a file")
        return self._found.setdefault((module, name), Name(module, name, self._names[module, name]))

    def _take_name(self) -> Name:
        module, name = self.take_name_line(), self.take_name_line()
        return self._find(module, name)

    def _push_name(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._stack.append(self._find(module, name))

    def _call(self) -> None:
        args, name = self._stack.pop(), self._stack.pop()
        self._push_call(name, args)

    def _call_with_keywords(self) -> None:
        keywords = self._stack.pop()
        if type(keywords) is not dict or keywords:
            raise PickleError("it calls with keywords")
        self._call()

    def _call_marked(self) -> None:
        name, *args = self._pop_mark()
        self._push_call(name, tuple(args))

    def _push_call(self, name: Any, args: Any) -> None:
        """Pushes the object that stands for the result of a call."""
        if type(name) is not Name or type(args) is not tuple:
            raise PickleError("it calls an object that is not a name")
        self._work_left -= 1 + len(args)
        for arg in args:
            if type(arg) in (str, bytes, memoryview):
                self._work_left -= len(arg)
            elif type(arg) is list:  # of pairs, which become a dict
                self._work_left -= _COST_OF_PAIR * len(arg)
        if self._work_left < 0:
            raise PickleError("it uses the same objects too often")
        self._push_object(name.call(args))

    def _build(self) -> None:
        """Fills the object below the top of the stack with the state on top."""
        state, target = self._stack.pop(), self._stack[-1]
        if isinstance(target, Draft):
            target.fill(state)
        elif type(target) is not dict:  # the attributes of an OrderedDict are ignored
            raise PickleError(f"it sets attributes of an object of type {type(target).__name__}")

    def _load(self, identity: Any) -> None:
        """Pushes an object that is stored outside the pickle."""
        if self._load_persistent is None:
            raise PickleError("it refers to objects outside of it")
        self._push_object(self._load_persistent(identity))
