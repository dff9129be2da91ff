"""Reads `pytorch_model.bin`, the weights of a PyTorch model."""

import io
import math
import os
import zipfile
from typing import Any, NamedTuple

import numpy as np

from txl_tf.errors import UserError, explain_errors
from txl_tf.release.pickles import read_pickle

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
_MAX_GROWTH = 8  # of memory, in file sizes: bfloat16 and tied weights each need twice the size


def read_torch_file(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Reads the named tensors that `torch.save` of torch 1.6 or newer wrote, without running code.

    They are in the order of the file, C-contiguous and possibly read-only.
    """
    with (
        explain_errors(f"`{path}` cannot be read", UserError, OSError),
        open(path, "rb") as file,
    ):
        archive = _Archive(file)
        names = {
            ("torch._utils", "_rebuild_tensor_v2"): archive.make_tensor,
            ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
            **{("torch", storage): storage for storage in _DTYPES},
        }
        pickled = archive.read("data.pkl")
        tensors = read_pickle(io.BytesIO(pickled), len(pickled), names, archive.load_storage)
        if not isinstance(tensors, dict):
            raise UserError("it does not hold a dict of tensors")
        for name, tensor in tensors.items():
            if type(name) is not str or not isinstance(tensor, np.ndarray):
                raise UserError(f"it holds {str(name)[:60]!a}, which is not a tensor")
        return tensors


class _Storage(NamedTuple):
    """A row of numbers, (n,), of which tensors are views, and its class in torch."""

    kind: str
    numbers: np.ndarray


class _Archive:
    """The zip file that `torch.save` writes: a pickle, and a member for each storage."""

    def __init__(self, file: Any) -> None:
        self._left = _MAX_GROWTH * os.fstat(file.fileno()).st_size
        self._storages: dict[str, bytes] = {}
        try:
            self._zip = zipfile.ZipFile(file)
            (pickled,) = (name for name in self._zip.namelist() if name.endswith("/data.pkl"))
        except Exception as error:  # zipfile does not document what a damaged directory raises
            raise UserError(_OLDER) from error
        self._folder = pickled.removesuffix("data.pkl")
        has_order = f"{self._folder}byteorder" in self._zip.NameToInfo
        if has_order and self.read("byteorder") != b"little":
            raise UserError("its numbers are not little-endian")

    def _allocate(self, n_bytes: int) -> None:
        """Limits memory, as members and tensors may overlap and declare any size."""
        self._left -= n_bytes
        if self._left < 0:
            raise UserError("its tensors are much larger than the file")

    def read(self, name: str) -> bytes:
        """Returns the content of a member, given its name without the common folder."""
        try:
            member = self._zip.getinfo(f"{self._folder}{name}")
        except KeyError as error:
            raise UserError(f"its member {name[:60]!a} is missing") from error
        self._allocate(member.file_size)
        if member.compress_type != zipfile.ZIP_STORED:  # a bomb, or no file of torch
            raise UserError(f"its member {name[:60]!a} is compressed")
        try:
            return self._zip.read(member)
        except Exception as error:  # as above
            raise UserError(f"its member {name[:60]!a} is damaged") from error

    def load_storage(self, identity: Any) -> _Storage:
        """Returns a storage for ("storage", its class, the name of its member, device, count)."""
        _, kind, key, _, _ = identity
        if type(kind) is not str or type(key) is not str:  # a tuple may take forever to hash
            raise UserError("it refers to an object that is not a storage")
        if key not in self._storages:
            self._storages[key] = self.read(f"data/{key}")
        return _Storage(kind, np.frombuffer(self._storages[key], _DTYPES[kind]))

    def make_tensor(self, storage: Any, offset: int, sizes: Any, strides: Any, *_: Any) -> Any:
        """Stands for `_rebuild_tensor_v2(storage, offset, sizes, strides, ...)`."""
        if type(storage) is not _Storage:
            raise UserError("a tensor has no storage")
        counts = (offset, *sizes, *strides)
        if any(type(count) is not int or not 0 <= count < 2**48 for count in counts):
            raise UserError("the shape of a tensor is invalid")
        if not math.prod(sizes):
            return np.zeros(sizes, storage.numbers.dtype)
        last = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
        if last >= len(storage.numbers):
            raise UserError("a tensor reaches beyond its storage")
        item_size = storage.numbers.itemsize
        self._allocate(math.prod(sizes) * item_size)
        view = np.lib.stride_tricks.as_strided(
            storage.numbers[offset:], sizes, [step * item_size for step in strides]
        )
        numbers = np.ascontiguousarray(view).reshape(sizes)
        if storage.kind == "BFloat16Storage":  # the upper half of a float32
            return (numbers.astype(np.uint32) << 16).view(np.float32)
        return numbers != 0 if storage.kind == "BoolStorage" else numbers
