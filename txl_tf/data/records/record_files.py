"""The files of a split, written one after the other: shards of records, and document boundaries."""

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import numpy as np

from txl_tf.data.records.format import DocumentsFile, Shard

_GAPS_PER_BLOCK = 2**16


class HashedFile:
    """A file that is hashed while it is written, and whose final name contains the hash."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def write(self, data: bytes) -> None:
        """Writes data."""
        self._file.write(data)
        self._digest.update(data)
        self._size += len(data)

    def describe_shard(self, split: str, index: int, n_shards: int, n_tokens: int) -> Shard:
        """Returns the description of the file as a shard, with its final name."""
        digest = self._digest.hexdigest()
        name = f"{split}-{index:05d}-of-{n_shards:05d}-{digest[:8]}.tfrecords"
        return Shard(name, n_tokens, self._size, digest)

    def describe_documents(self, split: str, count: int) -> DocumentsFile:
        """Returns the description of the file as document boundaries, with its final name."""
        digest = self._digest.hexdigest()
        return DocumentsFile(f"{split}-documents-{digest[:8]}.zlib", count, self._size, digest)


class DocumentsPacker:
    """Packs the document boundaries of a split."""

    def __init__(self) -> None:
        self.count = 0
        self._packer = zlib.compressobj()
        self._gaps = np.zeros(0, np.int64)  # not packed yet
        self._last = 0

    def pack(self, starts: np.ndarray) -> bytes:
        """Returns the next bytes of the file; the next documents begin at `starts`, (k,) int64."""
        if not starts.size:
            return b""
        self._gaps = np.concatenate([self._gaps, np.diff(starts, prepend=self._last)])
        self._last = int(starts[-1])
        self.count += len(starts)
        # In blocks of equal size, so that the file does not depend on the lengths of the chunks.
        n_whole = len(self._gaps) - len(self._gaps) % _GAPS_PER_BLOCK
        packed = b"".join(
            self._packer.compress(
                self._gaps[place : place + _GAPS_PER_BLOCK].astype("<u8").tobytes()
            )
            for place in range(0, n_whole, _GAPS_PER_BLOCK)
        )
        self._gaps = self._gaps[n_whole:].copy()
        return packed

    def finish(self) -> bytes:
        """Returns the last bytes of the file."""
        return self._packer.compress(self._gaps.astype("<u8").tobytes()) + self._packer.flush()


def cut_payloads(packed: Iterable[np.ndarray], tokens_per_record: int) -> Iterator[bytes]:
    """Yields the payloads of records, cut from stored ids, (n, bytes per token) uint8 each."""
    rest: np.ndarray | None = None
    for chunk in packed:
        joined = chunk if rest is None else np.concatenate([rest, chunk])
        whole = len(joined) - len(joined) % tokens_per_record
        for start in range(0, whole, tokens_per_record):
            yield joined[start : start + tokens_per_record].tobytes()
        rest = joined[whole:].copy()
    if rest is not None and rest.size:
        yield rest.tobytes()
