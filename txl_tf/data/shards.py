"""Writing the files of one split."""

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from txl_tf.data.codec import NO_OFFSETS
from txl_tf.data.records import Documents, RecordsInfo, Shard, pack_ids, pack_record


class TokenChunk(NamedTuple):
    """Some consecutive tokens of a split.

    Attributes:
        ids: The ids, (n,) of integers.
        document_starts: Which of them begin a document: their places in `ids`, (k,) int64, rising.
    """

    ids: np.ndarray
    document_starts: np.ndarray = NO_OFFSETS


def write_split(
    folder: Path,
    name: str,
    chunks: Iterable[TokenChunk],
    info: RecordsInfo,
    records_per_shard: int,
) -> tuple[tuple[Shard, ...], Documents | None]:
    """Writes the shards of a split, and the file of its documents if it has any.

    Args:
        folder: Where.
        name: The split.
        chunks: Its tokens, read one chunk at a time.
        info: The vocabulary, and the tokens of a record.
        records_per_shard: The most records of a file.

    Returns:
        What was written.

    Raises:
        ValueError: If an id is not in the vocabulary, or documents do not rise within a chunk.
        OSError: If a file cannot be written.
    """
    documents = _DocumentsFile(folder / f"{name}-documents")
    # None marks the end, so that a shard can be closed before the next record is asked for.
    records = _iterate_records(name, documents.watch(chunks), info)
    written: list[tuple[_HashedFile, int]] = []
    record = next(records, None)
    while record is not None:
        n_bytes = 0
        with closing(_HashedFile(folder / f"{name}-{len(written):05d}")) as file:
            for _ in range(records_per_shard):
                file.write(pack_record(record))
                n_bytes += len(record)
                record = next(records, None)
                if record is None:
                    break
        written.append((file, n_bytes // info.bytes_per_token))
    shards = tuple(
        Shard(*file.rename(f"-of-{len(written):05d}", ".tfrecords", tokens))
        for file, tokens in written
    )
    return shards, documents.finish()


def _iterate_records(name: str, chunks: Iterable[TokenChunk], info: RecordsInfo) -> Iterator[bytes]:
    """Yields the payloads of a split's records, whatever the lengths of the chunks."""
    rest = np.zeros((0, info.bytes_per_token), np.uint8)
    n_tokens = 0
    for chunk in chunks:
        _check_ids(name, chunk.ids, n_tokens, len(info.vocabulary))
        n_tokens += len(chunk.ids)
        packed = np.concatenate([rest, pack_ids(chunk.ids, info.bytes_per_token)])
        whole = len(packed) - len(packed) % info.tokens_per_record
        for start in range(0, whole, info.tokens_per_record):
            yield packed[start : start + info.tokens_per_record].tobytes()
        rest = packed[whole:].copy()
    if rest.size:
        yield rest.tobytes()


def _check_ids(name: str, ids: np.ndarray, position: int, n_symbols: int) -> None:
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(
            f"`splits` must yield rows of integers. Received for {name!r}: shape={ids.shape}, "
            f"dtype={ids.dtype}"
        )
    if not ids.size or (ids.min() >= 0 and ids.max() < n_symbols):
        return
    offset = int(((ids < 0) | (ids >= n_symbols)).argmax())
    raise ValueError(
        f"Ids must be at least 0 and below {n_symbols}, the size of the vocabulary. "
        f"Received for {name!r}: id {ids[offset]} at token {position + offset}"
    )


class _HashedFile:
    """A file that is hashed as it is written, and then gets a name with its hash."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        self._digest = hashlib.sha256()
        self._size = 0

    def close(self) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._size += len(data)

    def rename(self, middle: str, suffix: str, count: int) -> tuple[str, int, int, str]:
        """Gives the file its name; returns that, `count`, the size and the SHA-256."""
        digest = self._digest.hexdigest()
        named = self.path.with_name(f"{self.path.name}{middle}-{digest[:8]}{suffix}")
        self.path.rename(named)
        return named.name, count, self._size, digest


class _DocumentsFile:
    """Writes where documents begin, as the chunks go by."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: _HashedFile | None = None
        self._packer = zlib.compressobj()
        self._count = 0
        self._last = 0

    def watch(self, chunks: Iterable[TokenChunk]) -> Iterator[TokenChunk]:
        """Yields the chunks on, and notes their documents."""
        position = 0
        for chunk in chunks:
            starts = np.asarray(chunk.document_starts, np.int64)
            inside = np.concatenate([[-1], starts, [len(chunk.ids)]])
            if (np.diff(inside) <= 0).any():
                raise ValueError(
                    "`document_starts` must rise within the chunk. "
                    f"Received: {starts[:8].tolist()} for {len(chunk.ids)} tokens"
                )
            if starts.size:
                self._write(starts + position)
            position += len(chunk.ids)
            yield chunk

    def finish(self) -> Documents | None:
        """Closes the file, if there is one, and returns what it holds."""
        if self._file is None:
            return None
        with closing(self._file):
            self._file.write(self._packer.flush())
        return Documents(*self._file.rename("", ".zlib", self._count))

    def _write(self, starts: np.ndarray) -> None:
        if self._file is None:
            self._file = _HashedFile(self._path)
        gaps = np.diff(starts, prepend=self._last)
        self._last = int(starts[-1])
        self._count += len(starts)
        self._file.write(self._packer.compress(gaps.astype("<u8").tobytes()))
