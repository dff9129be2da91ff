"""Pickles are read without executing them, or refused in one line."""

import builtins
import io
import os
import pickle
import struct
import tracemalloc
from collections import Counter, OrderedDict

import numpy as np
import pytest

from txl_tf.errors import UserError
from txl_tf.release.pickles import NAMES, Array, Record, read_pickle, read_pickle_file

PROTOCOLS = range(6)
VALUES = [
    *(None, True, (), [], {}, 0, 255, 65536, -1, 2**63, 0.5, float("inf")),
    *("", "été", "\U0001f600", "a\nb\\c", "x" * 300, b"\x00\xff\n'\\", b"y" * 300),
    *((1, 2, 3, 4), ((5, (6,)), 7), list(range(2500)), {str(i): i for i in range(2500)}),
    *(OrderedDict(b=1, a=2), Counter("abbccc")),
]
ARRAYS = [
    np.arange(7, dtype=">i4"),
    np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
    np.array([True, False, True]),
    np.array(0.5, np.float32),
    np.zeros((3, 0)),
    np.arange(20_000),
]


class Box(Record):
    """A class that a pickle may name."""


def read(data, load_persistent=None):
    return read_pickle(io.BytesIO(data), {**NAMES, ("x", "C"): Box}, load_persistent)


def call(name, arguments=b")"):
    """Returns a pickle that calls a name."""
    return b"c" + b"\n".join(name.encode().rsplit(b".", 1)) + b"\n" + arguments + b"R."


def get_fault(data):
    """Returns the line that a pickle is refused with."""
    with pytest.raises(UserError) as error:
        read(data)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_are_read(protocol):
    for value, expected in zip(read(pickle.dumps(VALUES, protocol)), VALUES, strict=True):
        assert value == expected
    assert read(pickle.dumps(float("nan"), protocol)) != 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype} {array.shape}")
def test_arrays_are_read(array, protocol):
    found = read(pickle.dumps(array, protocol))
    assert type(found) is Array
    np.testing.assert_array_equal(found.values, array, strict=True)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"U\x02\xc3\xa9.", b"\xc3\xa9"),
        (b"T\x02\x00\x00\x00\xc3\xa9.", b"\xc3\xa9"),
        (b"L12L\n.", 12),
        (b"(I1\nI2\nl.", [1, 2]),
        (b"(U\x01aI2\nd.", {b"a": 2}),
        (b"K\x01(K\x02K\x031.", 1),
        (b"K\x01(0.", 1),
        (b"ccollections\nOrderedDict\n](](U\x01aK\x07ee\x85R.", {b"a": 7}),
    ],
)
def test_operations_of_python_2_are_read(data, expected):
    assert read(data) == expected


@pytest.mark.parametrize("made", [b"(ix\nC\n", b"(cx\nC\no", b"cx\nC\n)\x81", b"cx\nC\n)R"])
def test_an_object_of_an_allowed_class_is_a_record(made):
    found = read(made + b"}U\x01aK\x07sb.")
    assert type(found) is Box
    assert found.attributes == {b"a": 7}


def test_a_persistent_id_goes_to_its_handler():
    assert read(b"(K\x01U\x01atQPseven\n\x86.", lambda i: [i]) == ([(1, b"a")], ["seven"])


HOSTILE = {
    "os.system": call("os.system", b"(X\x02\x00\x00\x00lst"),
    "subprocess.Popen": b"(csubprocess\nPopen\nU\x02lso.",
    "builtins.eval": b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
    "__builtin__.eval": b"(S'1'\ni__builtin__\neval\n.",
    "__builtin__.getattr": pickle.dumps(getattr, 2),
    "collections.defaultdict": call("collections.defaultdict"),
    "numpy.load": call("numpy.load"),
    "collections.OrderedDict.fromkeys": b"\x8c\x0bcollections\x8c\x14OrderedDict.fromkeys\x93.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_is_not_listed_is_refused(name):
    assert get_fault(HOSTILE[name]) == f"the name {name} is not allowed in such a file"


def test_what_an_object_asks_to_be_called_is_not_called(tmp_path):
    made = str(tmp_path / "made")
    members = {"__reduce__": lambda self: (builtins.open, (made, "w"))}
    get_fault(pickle.dumps(type("Hostile", (), members)(), 4))
    assert not (tmp_path / "made").exists()


DAMAGED = "it is damaged or not a pickle: "
TYPE = b"cnumpy\ndtype\nU\x02i8\x85R"
REFUSED = {
    "an extension": (b"\x82\x01.", "the operation EXT1 is not allowed (at byte 0)"),
    "a set": (b"\x8f.", "the operation EMPTY_SET is not allowed"),
    "an uncalled name": (b"U\x01a)R.", DAMAGED),
    "a persistent id": (b"K\x01Q.", "it refers to objects outside of it"),
    "an empty stack": (b"a.", DAMAGED),
    "a mark too few": (b"K\x01t.", DAMAGED),
    "a memo without": (b"K\x01h\x07.", DAMAGED),
    "more behind": (b"N.N", "it has data after its end"),
    "its end is missing": (b"(K\x01K\x02", DAMAGED),
    "a key that is a list": (b"}]Ns.", DAMAGED),
    "a long key, again and again": (
        b"X\x01\x10\x00\x00" + b"a" * 4097 + b"q\x010}" + b"h\x01Ns" * 5 + b".",
        "it uses tuples or long strings too often",
    ),
    "bytes as a key": (
        b"}c_codecs\nencode\nX\x01\x00\x00\x00aX\x06\x00\x00\x00latin1\x86RNs.",
        DAMAGED,
    ),
    "a large number": (b"\x8a\x09" + b"\x00" * 8 + b"\x01.", "a number is too large"),
    "an entry below the top": (b")\x85N0q\x00.", "its memo has an entry 0 too early"),
    "attributes that are a list": (b"cx\nC\n)\x81]b.", "the attributes of Box are not one dict"),
    "attributes of a list": (b"]}b.", DAMAGED),
    "no latin1": (call("_codecs.encode", b"\x8c\x01a\x8c\x05utf-8\x86"), "bytes are not written"),
    "no pairs": (call("collections.OrderedDict", b"](K\x01K\x02e\x85"), DAMAGED),
    "an object of no class": (call("copyreg._reconstructor", b"K\x01K\x02N\x87"), "an object has"),
    "no byte order": (TYPE + b"(K\x03U\x01=NNNtb.", "an array has an unknown byte order"),
    "a type of parts": (TYPE + b"(K\x03U\x01<)NNtb.", "an array does not hold plain numbers"),
    "objects": (pickle.dumps(np.array([None]), 2), "an array does not hold plain numbers"),
    "texts": (pickle.dumps(np.array(["a"]), 2), "an array does not hold plain numbers"),
    "fields": (pickle.dumps(np.zeros(2, [("a", "i4")]), 2), "an array does not hold plain n"),
    "no pickle": (b"<html>", DAMAGED),
    "nothing": (b"", "it is empty"),
}


@pytest.mark.parametrize(("data", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_plain_data_never_need_is_refused(data, reason):
    assert get_fault(data).startswith(reason)


@pytest.mark.parametrize(
    "shape",
    [b"K\x04\x85", b"J\xfd\xff\xff\xff\x85", b"K\x03", b"(" + b"K\x01" * 9 + b"t"],
)
def test_an_array_has_the_bytes_of_its_shape(shape):
    data = pickle.dumps(np.arange(3), 3)
    assert data.count(b"K\x03\x85") == 1
    assert "an array" in get_fault(data.replace(b"K\x03\x85", shape))


HUGE = {
    "bytes": b"B\xff\xff\xff\x7f.",
    "more bytes": b"\x8e" + struct.pack("<Q", 2**60) + b".",
    "a bytearray": b"\x96" + struct.pack("<Q", 2**60) + b".",
    "a string": b"T\xff\xff\xff\x7f.",
    "a text": b"X\xff\xff\xff\xff.",
    "a number": b"\x8b\xff\xff\xff\x7f.",
    "a frame": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"N.",
    "an entry of the memo": b"Nr\xff\xff\xff\x7f.",
    "a line of the memo": b"Np2147483647\n.",
}


@pytest.mark.parametrize("data", HUGE.values(), ids=HUGE)
def test_a_huge_count_takes_no_memory(data):
    tracemalloc.start()
    get_fault(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_a_nest_of_doubled_tuples_is_refused():
    """Its hash would take 2**3000 steps."""
    data = b")q\x00" + b"h\x00h\x00\x86q\x00" * 3000 + b"."
    assert "it uses tuples or long strings too often" in get_fault(data)


def test_a_deep_nest_of_tuples_is_refused():
    """Its hash would overflow the stack."""
    assert "it uses tuples or long strings too often" in get_fault(b"})" + b"\x85" * 10**6 + b"Ns.")


@pytest.mark.parametrize("name", ["collections.OrderedDict", "_codecs.encode"])
def test_the_same_argument_is_not_copied_many_times(name):
    start = b"c" + b"\n".join(name.encode().rsplit(b".", 1)) + b"\nq\x000"
    long = b"](" + b"](U\x01aNe" * 1000 + b"e"
    if name == "_codecs.encode":
        text = b"X\x0f\x27\x00\x00" + b"a" * 9999
        data = start + b"X\x06\x00\x00\x00latin1q\x010" + text + b"q\x020]("
        data += b"h\x00h\x02h\x01\x86R" * 4 + b"e."
    else:
        data = start + long + b"q\x010](" + b"h\x00h\x01\x85R" * 17 + b"e."
    assert get_fault(data) == "it uses the same objects too often"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_memory_of_a_vocabulary_is_in_proportion_to_the_file(protocol):
    symbols = [f"{i:x}" for i in range(20_011)]
    ids = OrderedDict((symbol, i) for i, symbol in enumerate(symbols))
    data = pickle.dumps({"symbols": symbols, "ids": ids, "counter": Counter(symbols)}, protocol)
    tracemalloc.start()
    found = read(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert list(found["ids"]) == found["symbols"] == symbols
    assert peak < 30 * len(data)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "cache.pkl")
    with pytest.raises(UserError, match=r"^it is not a regular file$"):
        read_pickle_file(tmp_path / "cache.pkl", NAMES)
