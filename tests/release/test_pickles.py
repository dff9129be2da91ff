"""Pickles are read without executing them, or refused in one line."""

import builtins
import io
import os
import pickle
import tracemalloc
from collections import Counter, OrderedDict

import numpy as np
import pytest

from txl_tf.errors import UserError
from txl_tf.release.pickles import ARRAY_NAMES, Array, Record, read_pickle, read_pickle_file

VALUES = [
    *(None, True, (), [], {}, 0, 255, 65536, -1, 2**63, 0.5, float("inf")),
    *("", "été", "\U0001f600", "a\nb\\c", "x" * 300, b"", b"\x00\xff\n'\\", b"y" * 300),
    *((1, 2, 3, 4), ((5, (6,)), 7), list(range(2500)), {str(i): i for i in range(2500)}),
    *(OrderedDict(b=1, a=2), Counter("abbccc")),
]
ARRAYS = [np.arange(7, dtype=">i4"), np.zeros(0, np.uint8), np.arange(20_000)]


class Box(Record):
    """A class that a pickle may name."""


def read(data, load_external=None):
    names = {**ARRAY_NAMES, ("x", "C"): Box}
    return read_pickle(io.BytesIO(data), len(data), names, load_external)


def call(name, arguments=b")"):
    """Returns a pickle that calls a name."""
    return b"c" + b"\n".join(name.encode().rsplit(b".", 1)) + b"\n" + arguments + b"R."


def get_fault(data):
    """Returns the line that a pickle is refused with."""
    with pytest.raises(UserError) as error:
        read(data)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_plain_values_are_read():
    for value, expected in zip(read(pickle.dumps(VALUES, 2)), VALUES, strict=True):
        assert value == expected


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype} {array.shape}")
def test_arrays_are_read(array):
    found = read(pickle.dumps(array, 2))
    assert type(found) is Array
    np.testing.assert_array_equal(found.values, array, strict=True)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"U\x02\xc3\xa9.", b"\xc3\xa9"),
        (b"T\x02\x00\x00\x00\xc3\xa9.", b"\xc3\xa9"),
        (b"ccollections\nOrderedDict\n](](U\x01aK\x07ee\x85R.", {b"a": 7}),
    ],
)
def test_values_of_python_2_are_read(data, expected):
    assert read(data) == expected


@pytest.mark.parametrize("made", [b"cx\nC\n)\x81", b"cx\nC\n)R"])
def test_an_object_of_an_allowed_class_is_a_record(made):
    found = read(made + b"}U\x01aK\x07sb.")
    assert type(found) is Box
    assert found.attributes == {b"a": 7}


def test_an_external_object_is_loaded_by_its_id():
    assert read(b"(K\x01U\x01atQU\x05sevenQ\x86.", lambda i: [i]) == ([(1, b"a")], [b"seven"])


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_a_later_protocol_is_named(protocol):
    expected = f"it has protocol {protocol} of pickle; the 2019 code wrote 2"
    assert get_fault(pickle.dumps([1], protocol)) == expected


HOSTILE = {
    "os.system": call("os.system", b"(X\x02\x00\x00\x00lst"),
    "__builtin__.eval": call("__builtin__.eval", b"U\x011\x85"),
    "__builtin__.getattr": pickle.dumps(getattr, 2),
    "collections.defaultdict": call("collections.defaultdict"),
    "numpy.load": call("numpy.load"),
    "collections.OrderedDict.fromkeys": call("collections.OrderedDict.fromkeys"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_is_not_listed_is_refused(name):
    assert get_fault(HOSTILE[name]) == f"the name {name} is not allowed in such a file"


def test_reduce_methods_of_objects_are_not_called(tmp_path):
    made = str(tmp_path / "made")
    members = {"__reduce__": lambda self: (builtins.open, (made, "w"))}
    get_fault(pickle.dumps(type("Hostile", (), members)(), 2))
    assert not (tmp_path / "made").exists()


def test_attributes_of_what_stands_for_a_name_cannot_be_set():
    """`pickle.Unpickler` would set the default arguments of the function."""
    state = b"N}U\x0c__defaults__U\x01x\x85s\x86"
    assert get_fault(b"c_codecs\nencode\n" + state + b"b.").startswith(DAMAGED)


DAMAGED = "it is damaged or not a pickle: "
TYPE = b"cnumpy\ndtype\nU\x02i8\x85R"
REFUSED = {
    "an extension": (b"\x82\x01.", "the operation EXT1 is not allowed (at byte 0)"),
    "an old-style class": (b"(ix\nC\n.", "the operation INST is not allowed"),
    "a call of a value": (b"U\x01a)R.", DAMAGED),
    "an external object": (b"K\x01Q.", "the operation BINPERSID is not allowed"),
    "an empty stack": (b"a.", DAMAGED),
    "a missing mark": (b"K\x01t.", DAMAGED),
    "a missing entry of the memo": (b"K\x01h\x07.", DAMAGED),
    "data after the end": (b"N.N", "it has data after its end"),
    "no end": (b"(K\x01K\x02", DAMAGED),
    "a key that is a list": (b"}]Ns.", "a key is not a short text"),
    "a long key": (b"}X\x01\x10\x00\x00" + b"a" * 4097 + b"Ns.", "a key is not a short text"),
    "an odd number of items": (b"}(U\x01au.", DAMAGED),
    "items of a list": (b"](K\x00K\x00u.", "it sets items of an object that is not a dict"),
    "attributes that are a list": (b"cx\nC\n)\x81]b.", "the attributes of Box are not a dict"),
    "attributes of a list": (b"]}b.", DAMAGED),
    "no latin1": (call("_codecs.encode", b"U\x01aU\x05utf-8\x86"), "bytes are not written"),
    "no pairs": (call("collections.OrderedDict", b"](K\x01K\x02e\x85"), DAMAGED),
    "arguments in a list": (call("collections.OrderedDict", b"]"), "the arguments of a call are"),
    "no byte order": (TYPE + b"(K\x03U\x01=NNNtb.", "an array has an unknown byte order"),
    "an array of objects": (pickle.dumps(np.array([None]), 2), "an array does not hold integers"),
    "an array of texts": (pickle.dumps(np.array(["a"]), 2), "an array does not hold integers"),
    "a table": (pickle.dumps(np.zeros((2, 3), int), 2), "an array of 6 integers has another shape"),
    "no pickle": (b"<html>", DAMAGED),
    "nothing": (b"", DAMAGED),
}


@pytest.mark.parametrize(("data", "reason"), REFUSED.values(), ids=REFUSED)
def test_operations_and_values_of_other_pickles_are_refused(data, reason):
    assert get_fault(data).startswith(reason)


HUGE = {
    "a string": b"T\xff\xff\xff\x7f.",
    "a text": b"X\xff\xff\xff\xff.",
    "a number": b"\x8b\xff\xff\xff\x7f.",
    "an array": TYPE.join([b"cnumpy\nndarray\n)R(K\x01J\xff\xff\xff\x7f\x85", b"\x89U\x00tb."]),
}


@pytest.mark.parametrize("data", HUGE.values(), ids=HUGE)
def test_a_huge_count_takes_no_memory(data):
    tracemalloc.start()
    get_fault(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_the_memo_takes_no_memory_for_entries_that_are_not_there():
    """`pickle.Unpickler` would allocate 32 GB."""
    assert read(b"Nr\xff\xff\xff\x7f.") is None


def test_a_tuple_is_not_hashed():
    """A hash of the first would take 2**3000 steps; that of the second overflows the stack."""
    doubled = b")q\x00" + b"h\x00h\x00\x86q\x00" * 3000
    for nest in (doubled, b")" + b"\x85" * 10**6 + b"q\x00"):
        assert get_fault(nest + b"}h\x00Ns.") == "a key is not a short text"


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("collections.OrderedDict", b"](" + b"](U\x01aNe" * 1000 + b"e"),
        ("_codecs.encode", b"X\x0f\x27\x00\x00" + b"a" * 9999),
        ("numpy.core.multiarray._reconstruct", b"(" + b"N" * 9999 + b"t"),
    ],
)
def test_the_same_argument_is_not_copied_many_times(name, argument):
    make_tuple = b"" if argument.endswith(b"t") else b"\x85"
    function = b"c" + b"\n".join(name.encode().rsplit(b".", 1)) + b"\n"
    data = b"](" + argument + b"q\x00" + b"e](" + (function + b"h\x00" + make_tuple + b"R") * 30
    assert get_fault(data + b"e\x86.") == "it uses the same objects too often"


def test_memory_of_a_vocabulary_is_in_proportion_to_the_file():
    symbols = [f"{i:x}" for i in range(20_011)]
    ids = OrderedDict((symbol, i) for i, symbol in enumerate(symbols))
    data = pickle.dumps({"symbols": symbols, "ids": ids, "counter": Counter(symbols)}, 2)
    tracemalloc.start()
    found = read(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert list(found["ids"]) == found["symbols"] == symbols
    assert peak < 30 * len(data)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "cache.pkl")
    with pytest.raises(UserError, match=r"^it is missing or not a regular file$"):
        read_pickle_file(str(tmp_path / "cache.pkl"), ARRAY_NAMES)
