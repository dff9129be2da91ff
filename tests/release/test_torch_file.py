import json
import pickle
import struct
import sys
import zipfile

import numpy as np
import pytest
from places import GOLDEN

from txl_tf.errors import UserError
from txl_tf.release.torch_file import read_torch_file

WORD = GOLDEN / "hub" / "word"
DTYPES = {
    "DoubleStorage": np.float64,
    "HalfStorage": np.float16,
    "LongStorage": np.int64,
}
NUMBERS = np.arange(30, dtype=np.float32)


@pytest.fixture(autouse=True)
def without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # makes its import fail


def write_value(value):
    """Returns the operations that make a text, a number, a bool or a tuple."""
    if isinstance(value, bytes):  # operations
        return value
    if isinstance(value, str):
        return b"X" + struct.pack("<I", len(value)) + value.encode()
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)
    return b"(" + b"".join(map(write_value, value)) + b"t"


def write_tensor(sizes, strides, *, offset=0, kind="FloatStorage", key="0", count=30):
    storage = write_value(("storage", f"ctorch\n{kind}\n".encode(), key, "cpu", count)) + b"Q"
    hooks = b"ccollections\nOrderedDict\n)R"
    args = write_value((storage, offset, sizes, strides, False, hooks))
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + args + b"R"


def write_file(tmp_path, tensors, storages, *, folder="archive", stored=True, **members):
    """Writes a file as torch does: tensors are operations, storages are arrays."""
    items = b"".join(write_value(name) + tensor for name, tensor in tensors.items())
    data = b"\x80\x02ccollections\nOrderedDict\n)R(" + items + b"u}X\x09\x00\x00\x00_metadata}sb."
    contents = {"data.pkl": data, "version": b"3\n"}
    contents |= {f"data/{key}": array.tobytes() for key, array in storages.items()}
    path = tmp_path / "pytorch_model.bin"
    method = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in (contents | members).items():
            archive.writestr(f"{folder}/{name}", content)
    return path


def read_one(tmp_path, tensor, numbers=NUMBERS, **options):
    path = write_file(tmp_path, {"a": tensor}, {"0": numbers}, **options)
    return read_torch_file(path)["a"]


def read(path):
    """Reads a file; returns what it gave, or the line that it was refused with."""
    try:
        return read_torch_file(path)
    except UserError as error:
        return str(error)


def get_fault(path):
    with pytest.raises(UserError, match=r"^`.*` cannot be read: ") as error:
        read_torch_file(path)
    assert type(error.value) is UserError
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix(f"`{path}` cannot be read: ")


def read_safetensors(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32"
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], "<f4").reshape(entry["shape"])
    return tensors


def test_the_tensors_are_those_of_the_safetensors():
    tensors = read_torch_file(WORD / "pytorch_model.bin")
    expected = read_safetensors(WORD / "model.safetensors")
    assert len(expected) == 42
    for name, array in expected.items():
        np.testing.assert_array_equal(tensors[name], array, strict=True)


def test_tied_weights_are_there_under_both_names():
    tensors = read_torch_file(str(WORD / "pytorch_model.bin"))
    assert len(tensors) == 49  # safetensors keeps each once
    for i in range(4):
        tied = tensors[f"crit.out_layers.{i}.weight"]
        table = tensors[f"transformer.word_emb.emb_layers.{i}.weight"]
        assert np.shares_memory(tied, table)
        np.testing.assert_array_equal(tied, table, strict=True)


@pytest.mark.parametrize("kind", DTYPES)
def test_dtypes_are_kept(kind, tmp_path):
    numbers = np.arange(30).astype(DTYPES[kind])
    read = read_one(tmp_path, write_tensor((5, 6), (6, 1), kind=kind), numbers)
    np.testing.assert_array_equal(read, numbers.reshape(5, 6), strict=True)


def test_bfloat16_becomes_float32(tmp_path):
    bits = np.array([0x3F80, 0xC049, 0x7F80, 0x0000, 0x0001], np.uint16)
    read = read_one(tmp_path, write_tensor((5,), (1,), kind="BFloat16Storage", count=5), bits)
    expected = np.array([1, -3.140625, np.inf, 0, 2.0**-133], np.float32)
    np.testing.assert_array_equal(read, expected, strict=True)


TENSORS = {
    "a part": (write_tensor((2, 3), (3, 1), offset=7), NUMBERS[7:13].reshape(2, 3)),
    "up to the end": (write_tensor((2, 5), (15, 3), offset=2), NUMBERS.reshape(2, 15)[:, 2::3]),
    "a number": (write_tensor((), (), offset=11), NUMBERS[11]),
    "empty": (write_tensor((3, 0), (1, 1), offset=30), np.zeros((3, 0), np.float32)),
    "a parameter": (
        b"ctorch._utils\n_rebuild_parameter\n("
        + write_tensor((30,), (1,))
        + b"\x88ccollections\nOrderedDict\n)RtR",
        NUMBERS,
    ),
}


@pytest.mark.parametrize(("tensor", "expected"), TENSORS.values(), ids=TENSORS)
def test_strides_and_offsets_are_kept(tensor, expected, tmp_path):
    read = read_one(tmp_path, tensor, folder="any name", byteorder=b"little")
    np.testing.assert_array_equal(read, np.asarray(expected), strict=True)
    assert read.flags.c_contiguous


BAD_TENSORS = {
    "too large": (write_tensor((31,), (1,)), "a tensor reaches beyond its storage"),
    "too far": (write_tensor((3,), (1,), offset=28), "a tensor reaches beyond its storage"),
    "backwards": (write_tensor((3,), (-1,), offset=7), "the shape of a tensor is invalid"),
    "before": (write_tensor((3,), (1,), offset=-1), "the shape of a tensor is invalid"),
    "huge": (write_tensor((2**62,), (0,)), "the shape of a tensor is invalid"),
    "repeated": (write_tensor((2**20, 30), (0, 1)), "its tensors are much larger than the file"),
    "of many axes": (write_tensor((1,) * 99, (1,) * 99), "it is damaged or not a pickle: "),
    "missing": (write_tensor((3,), (1,), key="1"), "its member 'data/1' is missing"),
    "of a tuple": (write_tensor((3,), (1,), key=("0",)), "it refers to an object that is not a"),
    "of another kind": (
        write_tensor((3,), (1,), kind="ComplexFloatStorage"),
        "the name torch.ComplexFloatStorage is not allowed in such a file",
    ),
    "no storage": (
        b"ctorch._utils\n_rebuild_tensor_v2\n(K\x01K\x00))tR",
        "a tensor has no storage",
    ),
    "a number": (b"K\x07", "it holds 'a', which is not a tensor"),
    # A storage whose numbers the pickle replaces by a tensor of 2**40 rows without numbers.
    "beyond memory": (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + write_value(("storage", b"ctorch\nFloatStorage\n", "0", "cpu", 30))
        + b"Q}"
        + write_value("numbers")
        + write_tensor((2**40, 0), (1, 1))
        + b"sb"
        + write_value(0)
        + write_value((200,))
        + write_value((1,))
        + b"tR",
        "",
    ),
    "code": (b"cos\nsystem\n(X\x04\x00\x00\x00truetR", "the name os.system is not allowed in"),
}


@pytest.mark.parametrize(("tensor", "reason"), BAD_TENSORS.values(), ids=BAD_TENSORS)
def test_a_tensor_that_is_none_is_refused(tensor, reason, tmp_path):
    path = write_file(tmp_path, {"a": tensor}, {"0": NUMBERS})
    assert get_fault(path).startswith(reason)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"stored": False}, "its member 'data.pkl' is compressed"),
        ({"byteorder": b"big"}, "its numbers are not little-endian"),
    ],
)
def test_an_archive_that_torch_does_not_write_is_refused(options, reason, tmp_path):
    path = write_file(tmp_path, {"a": write_tensor((30,), (1,))}, {"0": NUMBERS}, **options)
    assert get_fault(path).startswith(reason)


def test_names_that_are_no_text_are_refused(tmp_path):
    path = write_file(tmp_path, {7: write_tensor((30,), (1,))}, {"0": NUMBERS})
    assert get_fault(path) == "a key is not a short text"


@pytest.mark.parametrize("content", [b"", pickle.dumps(0x1950A86A20F9469CFC6C, 2)])
def test_an_older_format_is_refused(content, tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    reason = "it is not a zip file of torch 1.6 or newer; older formats are not supported"
    assert get_fault(tmp_path / "pytorch_model.bin") == reason


def flip_bits(data, rng):
    changed = bytearray(data)
    for at in rng.integers(0, len(data), 3):
        changed[at] ^= 1 << rng.integers(8)
    return bytes(changed)


def test_a_changed_pickle_of_tensors_is_read_or_refused_in_a_line(tmp_path):
    rng = np.random.default_rng(11)
    with zipfile.ZipFile(WORD / "pytorch_model.bin") as archive:
        pickled = archive.read("pytorch_model/data.pkl")
        contents = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    results = []
    for _ in range(60):
        changed = contents | {"data.pkl": flip_bits(pickled, rng)}
        results.append(read(write_file(tmp_path, {}, {}, **changed)))
    assert {type(result) for result in results} == {dict, str}
    assert not any("\n" in result for result in results)


def test_a_missing_file_or_a_folder_is_refused_in_one_line(tmp_path):
    assert get_fault(tmp_path / "absent.bin") == "No such file or directory"
    assert get_fault(tmp_path) == "Is a directory"
