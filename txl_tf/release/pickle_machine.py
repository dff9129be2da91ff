"""The machine that a pickle is a program for: a stack, a memo, and no way out."""

import mmap
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, NoReturn

from txl_tf.release.pickle_values import ValueReader
from txl_tf.release.plain_data import Draft, Name, Names, PickleError, check_keys

_NEWEST_PROTOCOL = 5
_MAX_MARKS = 1000
_MAX_STACK = 2**16  # picklers put down 1,000 things at a time
_MAX_OPERATIONS = 2**25  # four times as many as lm1b's 800,000 symbols take
# An operation of one byte can make an object of 60 to 300 bytes. No pickler makes so many: even
# Python 2's OrderedDict, a list for each of its pairs, takes 12 bytes of the file or more for each.
_FREE_OBJECTS = 2**16
_BYTES_PER_OBJECT = 8
_BYTES_PER_MEMO = 4
_COST_OF_PAIR = 8
_OPERATIONS_BETWEEN_CHECKS = 2**14
_STOP = ord(".")
_DAMAGED = "it is no pickle, or damaged"

LoadPersistent = Callable[[Any], Any]
Operation = Callable[["PickleMachine"], None]


class PickleMachine(ValueReader):
    """The machine that a pickle is a program for.

    Args:
        operations: What each operation does, by the character that stands for it.
        data: The program.
        names: What it may name, (module, name), and what a call of that makes.
        load_persistent: What gives the things that the pickle refers to, by their ids.
    """

    def __init__(
        self,
        operations: Mapping[str, "Operation"],
        data: bytes | mmap.mmap,
        names: Names,
        load_persistent: LoadPersistent | None = None,
    ) -> None:
        super().__init__(data)
        self._names = names
        self._load_persistent = load_persistent
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # what the stack was, for each mark
        self._memo: dict[int, Any] = {}
        # A call may copy all of its arguments, and they may come from the memo many times.
        self._work_left = 2 * len(data) + 2**16
        self._objects_left = _FREE_OBJECTS + len(data) // _BYTES_PER_OBJECT
        self._max_memo = _FREE_OBJECTS + len(data) // _BYTES_PER_MEMO
        self._found: dict[tuple[str, str], Name] = {}
        self._operations: list[Callable[[], None]] = [self._refuse] * 256
        for opcode, operation in operations.items():
            self._operations[ord(opcode)] = MethodType(operation, self)

    def run(self) -> Any:
        """Runs the program.

        Returns:
            The object that it leaves on the stack.

        Raises:
            PickleError: If it is damaged, or asks for what is not allowed.
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
                    raise PickleError(f"its stack holds more than {_MAX_STACK:,} things")
            raise PickleError(f"it has more than {_MAX_OPERATIONS:,} operations")
        except PickleError as error:
            raise PickleError(f"{error} (at byte {start})") from error
        except IndexError as error:
            if self._at >= self._size:
                raise PickleError("it ends in the middle") from error
            raise PickleError(f"{_DAMAGED} (at byte {start})") from error
        except (ArithmeticError, ValueError) as error:
            raise PickleError(f"{_DAMAGED} (at byte {start})") from error
        finally:  # the operations refer to the machine, which would keep its memo
            self._memo, self._operations = {}, []

    def _finish(self) -> Any:
        if len(self._stack) != 1 or self._below:
            raise PickleError("it does not end with one object")
        if self._at < self._size:
            raise PickleError("something follows its end")
        return self._stack[0]

    def _refuse(self) -> NoReturn:
        opcode = self._data[self._at - 1 : self._at]
        raise PickleError(f"the operation {opcode!r} is unknown or not allowed")

    def check_protocol(self) -> None:
        """Reads the protocol."""
        protocol = self.take_byte()
        if protocol > _NEWEST_PROTOCOL:
            raise PickleError(f"its protocol {protocol} is unknown")

    def check_frame(self) -> None:
        """Reads how long a frame is."""
        self.check_left(self.take_number(8))

    # The stack and the memo.

    def push(self, item: Any) -> None:
        """Pushes something."""
        self._stack.append(item)

    def push_object(self, item: Any) -> None:
        """Pushes a new list, tuple, dict or other object, of which there may be only so many."""
        self._objects_left -= 1
        if self._objects_left < 0:
            raise PickleError(
                "it makes more than one list, tuple, dict or object for every "
                f"{_BYTES_PER_OBJECT} bytes"
            )
        self._stack.append(item)

    def pop(self) -> None:
        """Pops something, which may be a mark."""
        if self._stack:
            self._stack.pop()
        else:
            self.pop_mark()

    def pop_item(self) -> Any:
        """Pops and returns what is on top."""
        return self._stack.pop()

    def drop_marked(self) -> None:
        """Pops all down to the last mark."""
        self.pop_mark()

    def copy_top(self) -> None:
        """Pushes what is on top once more."""
        self._stack.append(self._stack[-1])

    def push_mark(self) -> None:
        """Pushes a mark."""
        if len(self._below) == _MAX_MARKS:
            raise PickleError(f"it is nested deeper than {_MAX_MARKS}")
        self._below.append(self._stack)
        self._stack = []

    def pop_mark(self) -> list[Any]:
        """Pops and returns all down to the last mark."""
        items = self._stack
        self._stack = self._below.pop()
        return items

    def put(self, index: int) -> None:
        """Remembers what is on top."""
        self._memo[index] = self._stack[-1]
        if len(self._memo) > self._max_memo:
            raise PickleError(f"it remembers more than one thing for every {_BYTES_PER_MEMO} bytes")

    def put_next(self) -> None:
        """Remembers what is on top, with the next index."""
        self.put(len(self._memo))

    def get(self, index: int) -> None:
        """Pushes what was remembered."""
        if index not in self._memo:
            raise PickleError(f"{_DAMAGED}: its memo holds nothing as {index}")
        self._stack.append(self._memo[index])

    # Lists, tuples and dicts.

    def push_tuple(self, count: int) -> None:
        """Makes a tuple of what is on top."""
        if len(self._stack) < count:
            raise PickleError(_DAMAGED)
        items = tuple(self._stack[-count:])
        del self._stack[-count:]
        self.push_object(items)

    def extend(self, items: list[Any]) -> None:
        """Appends to the list on top."""
        target = self._stack[-1]
        if type(target) is not list:
            raise PickleError(f"it appends to a thing of type {type(target).__name__}")
        target += items

    def update(self, items: list[Any]) -> None:
        """Adds keys and values, in turns, to the dict on top."""
        target = self._stack[-1]
        if type(target) is not dict:
            raise PickleError(f"it sets keys of a thing of type {type(target).__name__}")
        keys = items[::2]
        check_keys(keys)
        target.update(zip(keys, items[1::2], strict=True))

    def push_dict(self) -> None:
        """Makes a dict of what is above the mark."""
        items = self.pop_mark()
        self.push_object({})
        self.update(items)

    def set_item(self) -> None:
        """Adds the key and the value on top to the dict below them."""
        value, key = self._stack.pop(), self._stack.pop()
        self.update([key, value])

    # Names, and what stands for them.

    def find(self, module: Any, name: Any) -> Name:
        """Returns what stands for a name, if it is one of those that are allowed."""
        if type(module) is not str or type(name) is not str:
            raise PickleError("a name is no string")
        if (module, name) not in self._names:
            wrong = ascii(f"{module[:100]}.{name[:100]}")[1:-1]
            raise PickleError(f"the name {wrong} is not one that such a file needs")
        return self._found.setdefault((module, name), Name(module, name, self._names[module, name]))

    def take_name(self) -> Name:
        """Reads a name from two lines."""
        module, name = self.take_name_line(), self.take_name_line()
        return self.find(module, name)

    def push_name(self) -> None:
        """Makes a name of the two texts on top."""
        name, module = self._stack.pop(), self._stack.pop()
        self._stack.append(self.find(module, name))

    def call(self) -> None:
        """Makes what stands for a call of a name, both on top."""
        args, name = self._stack.pop(), self._stack.pop()
        self.push_call(name, args)

    def call_with_keywords(self) -> None:
        """As `call`, with keywords, of which there must be none."""
        keywords = self._stack.pop()
        if type(keywords) is not dict or keywords:
            raise PickleError("it calls with keywords")
        self.call()

    def call_marked(self) -> None:
        """As `call`, with what is above the mark."""
        name, *args = self.pop_mark()
        self.push_call(name, tuple(args))

    def call_named(self) -> None:
        """As `call_marked`, with a name from two lines."""
        self.push_call(self.take_name(), tuple(self.pop_mark()))

    def push_call(self, name: Any, args: Any) -> None:
        """Makes what stands for a call."""
        if type(name) is not Name or type(args) is not tuple:
            raise PickleError("it calls what has no name")
        self._work_left -= 1 + len(args)
        for arg in args:
            if type(arg) in (str, bytes, memoryview):
                self._work_left -= len(arg)
            elif type(arg) is list:  # of pairs, which become a dict
                self._work_left -= _COST_OF_PAIR * len(arg)
        if self._work_left < 0:
            raise PickleError("it uses the same things too often")
        self.push_object(name.call(args))

    def build(self) -> None:
        """Fills what is below the top with the top."""
        state, target = self._stack.pop(), self._stack[-1]
        if isinstance(target, Draft):
            target.fill(state)
        elif type(target) is not dict:  # the attributes of an OrderedDict are passed over
            raise PickleError(f"it sets attributes of a thing of type {type(target).__name__}")

    def load(self, identity: Any) -> None:
        """Pushes what the pickle refers to."""
        if self._load_persistent is None:
            raise PickleError("it refers to things outside of it")
        self.push_object(self._load_persistent(identity))
