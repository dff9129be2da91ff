import builtins
import contextlib
import os
import pickle
import struct
import tracemalloc
from collections import Counter, OrderedDict

import numpy as np
import pytest

from txl_tf.release import unpickling
from txl_tf.release.pickled_objects import NAMES, Array, PickleError, Record, make_records_of
from txl_tf.release.unpickling import read_pickle, read_pickle_file

PROTOCOLS = [0, 2, 5]
VALUES = {
    "constants": [None, True, False, (), [], {}],
    "small numbers": [0, 1, 255, 256, 65535, 65536, 2**31 - 1, -1, -(2**31)],
    "large numbers": [2**31, 2**63, -(2**63) - 1, 2**500, -(2**500)],
    "floats": [0.5, -2.75, 1e300, float("inf")],
    "texts": ["", "a", "été", "\U0001f600", "a\nb\\c\\u0041", "x" * 300, "\ud800"],
    "bytes": [b"", b"a", b"\x00\xff\n'\\", b"y" * 300],
    "tuples": [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ((5, (6,)), 7)],
    "a long list": list(range(2500)),
    "a large dict": {str(i): i for i in range(2500)},
    "classes of dicts": [OrderedDict(b=1, a=2), Counter("abbccc")],
    "numpy's numbers": [np.int64(-7), np.float32(0.5), np.bool_(True)],
}
ARRAYS = [
    np.arange(7),
    np.arange(7, dtype=">i4"),
    np.arange(30, dtype=np.uint8).reshape(2, 3, 5),
    np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
    np.array([0.5, -1.5], np.float32),
    np.array([True, False, True]),
    np.array(5),
    np.zeros((3, 0)),
    np.arange(20_000),  # more than is copied
]


def call(name, args=b")"):
    """Returns a pickle that calls a name."""
    return b"c" + b"\n".join(name.encode().rsplit(b".", 1)) + b"\n" + args + b"R."


def get_fault(data, **options):
    """Returns the line that a pickle is refused with."""
    with pytest.raises(PickleError) as error:
        read_pickle(data, NAMES, **options)
    assert type(error.value) is PickleError
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_are_read(protocol):
    for values in VALUES.values():
        read = read_pickle(pickle.dumps(values, protocol), NAMES)
        assert repr(read) == repr(plain(values))


def plain(value):
    """Returns a value with plain dicts and numbers."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_are_read(protocol):
    for array in ARRAYS:
        read = read_pickle(pickle.dumps(array, protocol), NAMES)
        assert type(read) is Array
        np.testing.assert_array_equal(read.values, array, strict=True)
        assert read.values.dtype == array.dtype


def test_what_is_shared_stays_shared():
    item = ["a"]
    first, second = read_pickle(pickle.dumps([item, item], 2), NAMES)
    assert first is second


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"S'a\\xc3\\xa9\\n\\'\\\\'\n.", b"a\xc3\xa9\n'\\"),
        (b"U\x02\xc3\xa9.", b"\xc3\xa9"),
        (b"L12L\n.", 12),
        (b"(I1\nI2\nl.", [1, 2]),
        (b"(U\x01aI2\nd.", {b"a": 2}),
        (b"K\x01(K\x02K\x031.", 1),
    ],
)
def test_operations_of_python_2_are_read(data, expected):
    assert read_pickle(data, NAMES) == expected


@pytest.mark.parametrize("data", [b"(ix\nC\n", b"cx\nC\n)\x81", b"cx\nC\n)R"])
def test_an_object_of_an_allowed_class_is_a_record(data):
    names = {("x", "C"): make_records_of("C")}
    read = read_pickle(data + b"}U\x01aK\x07sb.", names)
    assert type(read) is Record
    assert (read.kind, read.attributes) == ("C", {b"a": 7})
    with pytest.raises(PickleError, match=r"^the attributes of C are not one dict"):
        read_pickle(data + b"]b.", names)


HOSTILE = {
    "os.system": call("os.system", b"(X\x02\x00\x00\x00lst"),
    "builtins.eval": b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
    "numpy.core.multiarray.fromfile": call("numpy.core.multiarray.fromfile"),
    "collections.OrderedDict.fromkeys": b"\x8c\x0bcollections\x8c\x14OrderedDict.fromkeys\x93.",
    "data_utils.Corpus": b"cdata_utils\nCorpus\n)\x81.",  # allowed to others only
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_is_not_listed_is_refused(name):
    message = f"the name {name} is not allowed in such a file (at byte "
    assert get_fault(HOSTILE[name]).startswith(message)


@pytest.mark.parametrize("method", ["__reduce__", "__reduce_ex__"])
def test_what_an_object_asks_to_be_called_is_not(method, tmp_path):
    made = str(tmp_path / "made")
    members = {method: lambda self, *_: (builtins.open, (made, "w"))}
    get_fault(pickle.dumps(type("Hostile", (), members)(), 4))
    assert not (tmp_path / "made").exists()


REFUSED = {
    "a name is called that stands for itself": (
        call("numpy.ndarray"),
        "numpy.ndarray cannot be called",
    ),
    "a text is called": (b"U\x01a)R.", "it calls an object that is not a name"),
    "keywords": (b"ccollections\nOrderedDict\n)}U\x01aK\x01s\x92.", "it calls with keywords"),
    "a persistent id": (b"K\x01Q.", "it refers to objects outside of it"),
    "an extension": (b"\x82\x01.", r"the operation b'\x82' is unknown or not allowed"),
    "a protocol": (b"\x80\x06N.", "its protocol 6 is unknown"),
    "an empty stack": (b"a.", "it is damaged or not a pickle"),
    "a memo without": (b"K\x01h\x07.", "it is damaged or not a pickle: its memo has no entry 7"),
    "no object": (b".", "it does not end with one object"),
    "more behind": (b"N.N", "it has data after its end"),
    "a key that is a list": (b"}]Ns.", "a key is of type list, not a string"),
    "attributes of a list": (b"]}b.", "it sets attributes of an object of type list"),
    "an escape": (b"S'\\q'\n.", "a string has an unknown escape"),
    "a long line": (b"I" + b"9" * 401 + b"\n.", "it has a number or a name of more than 400"),
    "an unknown byte order": (
        b"cnumpy\ndtype\nU\x02i8\x85R(K\x03U\x01=NNNtb.",
        "an array has an unknown byte order",
    ),
    "not latin1": (
        call("_codecs.encode", b"\x8c\x01a\x8c\x05utf-8\x86"),
        "bytes are not written as latin1",
    ),
    "no pairs": (call("collections.OrderedDict", b"](K\x01K\x02e\x85"), "a dict is not made of"),
    "a long key": (b"}X\x01\x10\x00\x00" + b"a" * 4097 + b"Ns.", "a key is longer than 4096"),
    "quotes": (b"S'a\n.", "a string has no quotes"),
    "digits": (b"I1_0\n.", "b'1_0' is not a number"),
    "a name of numbers": (b"K\x01K\x02\x93.", "a name is not a string"),
    "a type with parts": (
        b"cnumpy\ndtype\nU\x02i8\x85R(K\x03U\x01<)NNJ\xff\xff\xff\xfftb.",
        "an array does not hold plain numbers",
    ),
    "a reconstructed number": (
        call("copy_reg._reconstructor", b"K\x01K\x02N\x87"),
        "an object has no class",
    ),
}


@pytest.mark.parametrize(("data", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_plain_data_never_need_is_refused(data, reason):
    assert get_fault(data).startswith(reason)


ODD_ARRAYS = {
    "objects": np.array([None]),
    "dates": np.array([0], "M8[s]"),
    "fields": np.zeros(2, [("a", "i4")]),
}


@pytest.mark.parametrize("array", ODD_ARRAYS.values(), ids=ODD_ARRAYS)
def test_arrays_of_other_things_are_refused(array):
    assert "an array does not hold plain numbers" in get_fault(pickle.dumps(array, 2))


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (b"K\x04\x85", "an array has 24 bytes, which does not fit its shape"),
        (b"J\xfd\xff\xff\xff\x85", "the shape of an array is invalid"),
        (b"(" + b"K\x01" * 9 + b"t", "the shape of an array is invalid"),
    ],
)
def test_an_array_has_the_bytes_of_its_shape(shape, reason):
    data = pickle.dumps(np.arange(3), 3)
    assert data.count(b"K\x03\x85") == 1
    assert reason in get_fault(data.replace(b"K\x03\x85", shape))


HUGE = {
    "more bytes": b"\x8e" + struct.pack("<Q", 2**60) + b".",
    "a negative string": b"T\xff\xff\xff\xff.",
    "a number": b"\x8b\xff\xff\xff\x7f.",
    "a frame": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"N.",
}


@pytest.mark.parametrize("data", HUGE.values(), ids=HUGE)
def test_a_huge_count_is_refused_without_taking_memory(data):
    tracemalloc.start()
    with pytest.raises(PickleError, match=r"^(it is truncated|it has a number of more than)"):
        read_pickle(data, NAMES)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


DEEP = {
    "lists": b"]" * 50_000 + b"a" * 49_999,
    "attributes": b"cx\nC\n)\x81}U\x01a" * 60 + b"N" + b"sb" * 60,
    "marks": b"(" * 2000,
}


@pytest.mark.parametrize("data", DEEP.values(), ids=DEEP)
def test_deep_nesting_is_refused(data):
    with pytest.raises(PickleError, match=r"^it is nested deeper than (50|1000)"):
        read_pickle(data + b".", {("x", "C"): make_records_of("C")})


def test_doubling_takes_no_time():
    # 2**3000 leaves, were they counted one by one.
    with pytest.raises(PickleError, match=r"nested deeper"):
        read_pickle(b")" + b"2\x86" * 3000 + b".", NAMES)


def test_a_long_argument_is_not_used_many_times():
    text = b"a" * 100_000
    start = b"](c_codecs\nencode\n(X" + struct.pack("<I", len(text)) + text + b"X\x06\x00\x00\x00"
    data = start + b"latin1tq\x00Rc_codecs\nencode\nq\x010" + b"h\x01h\x00R0" * 100 + b"e."
    assert "it uses the same objects too often" in get_fault(data)


def test_a_stack_that_grows_and_grows_is_refused():
    assert "its stack holds more than 65,536 objects" in get_fault(b"N" * 100_000 + b".")


def test_memory_is_in_proportion_to_the_file(monkeypatch):
    """Also with as many objects as its bytes allow."""
    monkeypatch.setattr(unpickling, "_FREE_OBJECTS", 1009)
    unit = b"}h\x00Ns2\x94\x94"
    batch = b"(" + unit * (20_011 // len(unit)) + b"e"
    data = b"U\x02abq\x000]" + batch * 19 + b"."
    tracemalloc.start()
    with contextlib.suppress(PickleError):
        read_pickle(data, NAMES)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60 * len(data)


def test_more_objects_than_bytes_are_refused():
    lists = b"]" + 83 * (b"(" + b"]" * 60_000 + b"e") + b"."
    assert "it makes more than one list, tuple, dict or object for every 8 bytes" in get_fault(
        lists
    )
    assert "it stores more than one object for every 4 b" in get_fault(b"N" + b"\x94" * 90_000)


def test_a_large_vocabulary_is_within_the_bounds(monkeypatch):
    monkeypatch.setattr(unpickling, "_FREE_OBJECTS", 101)
    symbols = [f"{i:x}" for i in range(20_011)]
    ids = OrderedDict((symbol, i) for i, symbol in enumerate(symbols))
    value = {"symbols": symbols, "ids": ids, "counter": Counter(symbols)}
    read = read_pickle(pickle.dumps(value, 2), NAMES)
    assert list(read["ids"]) == read["symbols"] == symbols


def test_a_pickle_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(unpickling, "_MAX_OPERATIONS", 2**15)
    assert read_pickle(b"N0" * (2**14 - 1) + b"N.", NAMES) is None
    assert "it has more than 32,768 operations" in get_fault(b"N0" * 2**14 + b"N.")


def test_a_persistent_id_goes_to_its_handler():
    data = b"(K\x01U\x01atQPseven\n\x86."
    assert read_pickle(data, {}, lambda identity: [identity]) == ([(1, b"a")], ["seven"])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"<html>", "the operation b'<' is unknown"),
        (b"PK\x03\x04", "it is truncated"),
    ],
)
def test_another_file_is_refused(content, reason, tmp_path):
    (tmp_path / "cache.pkl").write_bytes(content)
    with pytest.raises(PickleError, match=f"^{reason}"):
        read_pickle_file(tmp_path / "cache.pkl", NAMES)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "cache.pkl")
    with pytest.raises(PickleError, match=r"^it is not a regular file$"):
        read_pickle_file(tmp_path / "cache.pkl", NAMES)
