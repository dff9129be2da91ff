"""Reads pickles without running them.

A pickle is a program for a machine with a stack and a memo. Python's own machine calls whatever
the program names, and takes memory for whatever length it states. This one makes plain data only
(None, bool, int, float, str, bytes, list, tuple, dict): a name must be one of those that the
reader lists, each with what to make in its stead, and nothing is looked up or imported. Lengths
are compared with what is left of the file before anything is made, and what a program uses again
is not copied again. An operation of one byte can make an empty list of 60 bytes, so a pickle may
make one list, tuple, dict or object for every 8 bytes of the file, far more than any pickler does.
Time and memory stay in proportion to the size of the file: about 50 bytes of memory for each byte
at most.

What the operations mean is described by `pickletools` of the standard library.
"""

import contextlib
import gc
import mmap
import os
import stat
from collections.abc import Iterator
from typing import Any

from txl_tf.release.pickle_machine import LoadPersistent, Operation, PickleMachine
from txl_tf.release.plain_data import Names, PickleError, check_depth

# What each operation does, by the character that stands for it.
_OPERATIONS: dict[str, Operation] = {
    "\x80": PickleMachine.check_protocol,
    "\x95": PickleMachine.check_frame,
    # Constants, numbers and strings.
    "N": lambda machine: machine.push(None),
    "\x88": lambda machine: machine.push(True),
    "\x89": lambda machine: machine.push(False),
    "I": lambda machine: machine.push(machine.take_int_or_bool_line()),
    "L": lambda machine: machine.push(machine.take_int_line()),
    "J": lambda machine: machine.push(machine.take_signed()),
    "K": lambda machine: machine.push(machine.take_byte()),
    "M": lambda machine: machine.push(machine.take_number(2)),
    "\x8a": lambda machine: machine.push(machine.take_long(1)),
    "\x8b": lambda machine: machine.push(machine.take_long(4)),
    "F": lambda machine: machine.push(machine.take_float_line()),
    "G": lambda machine: machine.push(machine.take_float()),
    "S": lambda machine: machine.push(machine.take_bytes_line()),
    "U": lambda machine: machine.push(machine.take_bytes(1)),
    "T": lambda machine: machine.push(machine.take_bytes(4)),
    "C": lambda machine: machine.push(machine.take_bytes(1)),
    "B": lambda machine: machine.push(machine.take_bytes(4)),
    "\x8e": lambda machine: machine.push(machine.take_bytes(8)),
    "\x96": lambda machine: machine.push(machine.take_bytes(8)),  # a bytearray
    "V": lambda machine: machine.push(machine.take_text_line()),
    "\x8c": lambda machine: machine.push(machine.take_text(1)),
    "X": lambda machine: machine.push(machine.take_text(4)),
    "\x8d": lambda machine: machine.push(machine.take_text(8)),
    # Lists, tuples and dicts.
    "]": lambda machine: machine.push_object([]),
    "l": lambda machine: machine.push_object(machine.pop_mark()),
    "a": lambda machine: machine.extend([machine.pop_item()]),
    "e": lambda machine: machine.extend(machine.pop_mark()),
    ")": lambda machine: machine.push(()),
    "t": lambda machine: machine.push_object(tuple(machine.pop_mark())),
    "\x85": lambda machine: machine.push_tuple(1),
    "\x86": lambda machine: machine.push_tuple(2),
    "\x87": lambda machine: machine.push_tuple(3),
    "}": lambda machine: machine.push_object({}),
    "d": PickleMachine.push_dict,
    "s": PickleMachine.set_item,
    "u": lambda machine: machine.update(machine.pop_mark()),
    # The stack and the memo.
    "(": PickleMachine.push_mark,
    "0": PickleMachine.pop,
    "1": PickleMachine.drop_marked,
    "2": PickleMachine.copy_top,
    "p": lambda machine: machine.put(machine.take_int_line()),
    "q": lambda machine: machine.put(machine.take_byte()),
    "r": lambda machine: machine.put(machine.take_number(4)),
    "\x94": PickleMachine.put_next,
    "g": lambda machine: machine.get(machine.take_int_line()),
    "h": lambda machine: machine.get(machine.take_byte()),
    "j": lambda machine: machine.get(machine.take_number(4)),
    # Names, and what stands for them.
    "c": lambda machine: machine.push(machine.take_name()),
    "\x93": PickleMachine.push_name,
    "R": PickleMachine.call,
    "\x81": PickleMachine.call,
    "\x92": PickleMachine.call_with_keywords,
    "o": PickleMachine.call_marked,
    "i": PickleMachine.call_named,
    "b": PickleMachine.build,
    "P": lambda machine: machine.load(machine.take_name_line()),
    "Q": lambda machine: machine.load(machine.pop_item()),
}


def read_pickle_file(path: str | os.PathLike[str], names: Names) -> Any:
    """Reads a pickled file.

    Args:
        path: The file. It stays mapped into memory while something big of it is in use.
        names: As in `read_pickle`.

    Returns:
        As `read_pickle`.

    Raises:
        PickleError: As `read_pickle`, and if it is empty or no regular file.
        OSError: If it cannot be opened.
    """
    # A pipe would be waited for, and a device has no end.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise PickleError("it is no regular file")
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
        names: What it may name, (module, name), and what a call of that makes.
        load_persistent: What gives the things that the pickle refers to, by their ids.

    Returns:
        The object it holds. A `str` of Python 2 is `bytes`; `bytes` of more than 64 KiB are a
        `memoryview` of `data`. Lists, tuples, dicts and records hold each other up to 50 deep.

    Raises:
        PickleError: If it is damaged, or asks for what is not allowed.
    """
    with _suspend_collection():
        top = PickleMachine(_OPERATIONS, data, names, load_persistent).run()
        check_depth(top)
    return top


@contextlib.contextmanager
def _suspend_collection() -> Iterator[None]:
    """Keeps Python from looking for cycles, over and over, in what only grows."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
