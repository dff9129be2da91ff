"""Reads `pytorch_model.bin`, the weights of a PyTorch model."""

import io
import math
import os
import zipfile
from typing import Any, NamedTuple

import numpy as np

from txl_tf.errors import UserError, explain_errors
from txl_tf.release.pickles import check_sizes, read_pickle

_DTYPES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "BFloat16Storage": "<u2",  # the bits: NumPy has no such type
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ByteStorage": "u1",
    "BoolStorage": "u1",
}
_OLDER = "it is not a zip file of torch 1.6 or newer; older formats are not supported"


def read_torch_file(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Reads the tensors by name that `torch.save` of torch 1.6 or newer wrote, executing nothing.

    They are in the file's order, C-contiguous and possibly read-only.
    """
    with (
        explain_errors(f"`{path}` cannot be read", UserError, OSError),
        open(path, "rb") as file,
    ):
        archive = Archive(file, os.fstat(file.fileno()).st_size)
        names = {
            ("torch._utils", "_rebuild_tensor_v2"): archive.make_tensor,
            ("torch._utils", "_rebuild_parameter"): _make_parameter,
            **{("torch", storage): storage for storage in _DTYPES},
        }
        pickled = io.BytesIO(archive.read("data.pkl"))
        tensors = read_pickle(pickled, names, archive.load_storage)
        if not isinstance(tensors, dict):
            raise UserError("it does not hold a dict of tensors")
        for name, tensor in tensors.items():
            if type(name) is not str or not isinstance(tensor, np.ndarray):
                raise UserError(f"it holds {str(name)[:60]!a}, which is not a tensor")
        return dict(tensors)


class Storage(NamedTuple):
    """A row of numbers, (n,), of which tensors are views, and its class in torch.

    A tuple, because a pickle can set the attributes of any object that has a `__dict__`.
    """

    kind: str
    numbers: np.ndarray


class Archive:
    """The zip file of `size` bytes that `torch.save` writes: a pickle, and a file per storage."""

    def __init__(self, file: io.BufferedIOBase | Any, size: int) -> None:
        try:
            self._zip = zipfile.ZipFile(file)
            (pickled,) = (name for name in self._zip.namelist() if name.endswith("/data.pkl"))
        except Exception as error:  # zipfile does not document what a damaged directory raises
            raise UserError(_OLDER) from error
        self._folder = pickled.removesuffix("data.pkl")
        self._bytes_left = size  # to read; members may overlap
        self._work_left = 4 * size  # tensors may be larger than their storages, or share one
        self._storages: dict[str, bytes] = {}
        has_order = f"{self._folder}byteorder" in self._zip.NameToInfo
        if has_order and self.read("byteorder") != b"little":
            raise UserError("its numbers are not little-endian")

    def read(self, name: str) -> bytes:
        """Returns the content of a member, by its name without the folder of all members."""
        try:
            member = self._zip.getinfo(f"{self._folder}{name}")
        except KeyError as error:
            raise UserError(f"its member {name[:60]!a} is missing") from error
        self._bytes_left -= member.file_size
        is_stored = member.compress_type == zipfile.ZIP_STORED
        if not is_stored or member.compress_size != member.file_size or self._bytes_left < 0:
            raise UserError(f"its member {name[:60]!a} is not stored as torch does")
        try:
            return self._zip.read(member)
        except Exception as error:  # as above
            raise UserError(f"its member {name[:60]!a} is damaged") from error

    def load_storage(self, identity: Any) -> Storage:
        """Returns a storage for ("storage", its kind, the name of its member, device, count)."""
        _, kind, key, _, count = identity if type(identity) is tuple else ()
        if type(kind) is not str or kind not in _DTYPES or type(key) is not str:
            raise UserError("it refers to an object that is not a storage")
        if key not in self._storages:
            self._storages[key] = self.read(f"data/{key[:60]}")
        data, dtype = self._storages[key], np.dtype(_DTYPES[kind])
        if type(count) is not int or count * dtype.itemsize != len(data):
            raise UserError(f"its storage {key[:60]!a} does not have the size that it states")
        return Storage(kind, np.frombuffer(data, dtype))

    def make_tensor(self, *args: Any) -> np.ndarray:
        """Stands for `_rebuild_tensor_v2(storage, offset, sizes, strides, ...)`."""
        if len(args) < 4 or type(args[0]) is not Storage:
            raise UserError("a tensor has no storage")
        storage, offset, sizes, strides = args[:4]
        for numbers in ((offset,), sizes, strides):
            check_sizes(numbers)
        n_numbers = math.prod(sizes)
        last = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
        if n_numbers and last >= len(storage.numbers):
            raise UserError("a tensor reaches beyond its storage")
        self._work_left -= n_numbers * storage.numbers.itemsize
        if self._work_left < 0:
            raise UserError("its tensors are much larger than the file")
        view = np.zeros(sizes, storage.numbers.dtype)
        if n_numbers:
            steps = tuple(step * storage.numbers.itemsize for step in strides)
            view = np.lib.stride_tricks.as_strided(storage.numbers[offset:], sizes, steps)
        numbers = np.ascontiguousarray(view).reshape(sizes)
        if storage.kind == "BFloat16Storage":  # the upper half of a float32
            return (numbers.astype(np.uint32) << 16).view(np.float32)
        return numbers != 0 if storage.kind == "BoolStorage" else numbers


def _make_parameter(*args: Any) -> Any:
    """Stands for `_rebuild_parameter(tensor, requires_grad, hooks)`."""
    if not args or not isinstance(args[0], np.ndarray):
        raise UserError("a parameter has no tensor")
    return args[0]
