"""Reading the records of a data set at any position."""

import os
from collections.abc import Iterator
from itertools import accumulate
from typing import BinaryIO

import numpy as np

from txl_tf.data.records import (
    FRAME_BYTES,
    JSON_NAME,
    RecordError,
    RecordsInfo,
    Shard,
    hash_file,
    unpack_record,
)
from txl_tf.data.vocabulary import Vocabulary


class Split:
    """The tokens of one split, read from its shards at any position.

    Holds no open file and no token, so that threads and processes may share it.

    Args:
        data_dir: The folder of the data set.
        name: The split.
        info: The content of the folder's `records.json`.
    """

    def __init__(self, data_dir: str, name: str, info: RecordsInfo) -> None:
        self.name = name
        self._data_dir = data_dir
        self._info = info
        self._shards = info.splits[name]
        self._ends = list(accumulate(shard.tokens for shard in self._shards))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, stop: int) -> np.ndarray:
        """Reads the tokens from `start` up to, not including, `stop`.

        Args:
            start: Position of the first token.
            stop: Position behind the last token.

        Returns:
            The ids, (stop - start,) int32.

        Raises:
            ValueError: If the positions are not in order within the split.
            RecordError: If a record that was read is damaged or holds an unknown id.
        """
        if not 0 <= start <= stop <= len(self):
            raise ValueError(
                f"`start` and `stop` must be in order within the {len(self)} tokens of "
                f"{self.name!r}. Received: start={start}, stop={stop}"
            )
        ids = np.empty(stop - start, np.int32)
        for shard, end in zip(self._shards, self._ends, strict=True):
            begin = end - shard.tokens
            low, high = max(start, begin), min(stop, end)
            if low < high:
                self._read_shard(shard, low - begin, high - begin, ids[low - start : high - start])
        return ids

    def _read_shard(self, shard: Shard, start: int, stop: int, out: np.ndarray) -> None:
        """Reads tokens `start` to `stop` of a shard into `out`, (stop - start,) int32."""
        per_record = self._info.tokens_per_record
        first = start // per_record
        with _open_file(_join(self._data_dir, shard.file)) as file:
            file.seek(first * self._info.record_bytes)
            for record in range(first, -(-stop // per_record)):
                begin = record * per_record
                tokens = self._read_record(file, shard, record)
                low, high = max(start, begin), min(stop, begin + per_record)
                out[low - start : high - start] = tokens[low - begin : high - begin]

    def _read_record(self, file: BinaryIO, shard: Shard, record: int) -> np.ndarray:
        """Reads and checks the record at which `file` stands; returns its ids as stored."""
        per_record = self._info.tokens_per_record
        n_tokens = min(per_record, shard.tokens - record * per_record)
        n_bytes = n_tokens * self._info.dtype.itemsize
        payload = unpack_record(file.read(n_bytes + FRAME_BYTES), n_bytes)
        where = f"`{_join(self._data_dir, shard.file)}`, record {record}"
        if payload is None:
            raise RecordError(f"{where}: corrupt, its checksum or length is wrong.")
        ids = np.frombuffer(payload, self._info.dtype)
        highest = int(ids.max())
        if highest >= len(self._info.vocabulary):
            raise RecordError(
                f"{where}: holds the id {highest}, but the vocabulary has "
                f"{len(self._info.vocabulary)} symbols."
            )
        return ids


class Records:
    """A data set as it lies in a folder; `open_records` makes it.

    Args:
        data_dir: The folder of the data set.
        info: The content of the folder's `records.json`.
    """

    def __init__(self, data_dir: str, info: RecordsInfo) -> None:
        self.data_dir = data_dir
        self._info = info

    @property
    def dataset(self) -> str:
        """The name of the data set."""
        return self._info.dataset

    @property
    def vocabulary(self) -> Vocabulary:
        """The symbols of the data set."""
        return self._info.vocabulary

    @property
    def cutoffs(self) -> tuple[int, ...]:
        """The ids at which the adaptive softmax starts a new bin."""
        return self._info.cutoffs

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self._info.splits)

    def n_tokens(self, split: str) -> int:
        """Returns the number of tokens of a split.

        Raises:
            RecordError: If there is no such split.
        """
        return len(self.split(split))

    def split(self, name: str) -> Split:
        """Returns a split, to read from.

        Raises:
            RecordError: If there is no such split.
        """
        if name not in self._info.splits:
            raise RecordError(
                f"`{self.data_dir}` has no split {name!r}; it has {', '.join(self.splits)}."
            )
        return Split(self.data_dir, name, self._info)


def open_records(data_dir: str | os.PathLike[str]) -> Records:
    """Opens a data set and checks that its shards are there at full size.

    Args:
        data_dir: The folder; an address such as "gs://bucket/folder" is read through tensorflow.

    Returns:
        The data set.

    Raises:
        RecordError: If the folder holds no records, they are of another format version, or a shard
            is missing or of the wrong size.
    """
    folder = os.fspath(data_dir)
    info = _read_info(folder)
    for shard in _iterate_shards(info):
        _check_size(folder, shard, info)
    return Records(folder, info)


def read_ids(records_dir: str | os.PathLike[str], split: str) -> np.ndarray:
    """Reads a whole split in order.

    Args:
        records_dir: The folder of the data set.
        split: The split.

    Returns:
        The ids, (n,) int32.

    Raises:
        RecordError: If the data set is damaged or has no such split.
    """
    tokens = open_records(records_dir).split(split)
    return tokens.read(0, len(tokens))


def verify_records(data_dir: str | os.PathLike[str]) -> None:
    """Reads every byte of a data set and compares the SHA-256 of each shard with `records.json`.

    Args:
        data_dir: The folder of the data set.

    Raises:
        RecordError: As `open_records`, or if a shard is not the one that was written.
    """
    folder = os.fspath(data_dir)
    open_records(folder)
    for shard in _iterate_shards(_read_info(folder)):
        path = _join(folder, shard.file)
        with _open_file(path) as file:
            found = hash_file(file)
        if found != shard.sha256:
            raise RecordError(f"`{path}`: expected SHA-256 {shard.sha256}, found {found}.")


def _read_info(folder: str) -> RecordsInfo:
    path = _join(folder, JSON_NAME)
    if _get_size(path) is None:
        raise RecordError(
            f"`{folder}` holds no records. Make them with: "
            f"python data_prep/make_tfrecords.py --dataset NAME --data_dir {folder}"
        )
    with _open_file(path) as file:
        text = file.read()
    try:
        return RecordsInfo.loads(text)
    except RecordError as error:
        raise RecordError(f"`{path}`: {error}") from error


def _iterate_shards(info: RecordsInfo) -> Iterator[Shard]:
    for shards in info.splits.values():
        yield from shards


def _check_size(folder: str, shard: Shard, info: RecordsInfo) -> None:
    path = _join(folder, shard.file)
    found = _get_size(path)
    if found is None:
        raise RecordError(f"`{path}` is missing, but {JSON_NAME} lists it. Make the records again.")
    if found < shard.bytes:
        raise RecordError(
            f"`{path}` is truncated: expected {shard.bytes} bytes, found {found}; "
            f"record {found // info.record_bytes} is the first that is cut."
        )
    if found > shard.bytes:
        raise RecordError(
            f"`{path}` is too long: expected {shard.bytes} bytes, found {found}. "
            "Make the records again."
        )


def _join(folder: str, file: str) -> str:
    return f"{folder.rstrip('/')}/{file}"


def _is_remote(path: str) -> bool:
    return "://" in path


def _open_file(path: str) -> BinaryIO:
    """Opens a file for reading; a remote one through tensorflow."""
    if not _is_remote(path):
        return open(path, "rb")
    import tensorflow as tf

    return tf.io.gfile.GFile(path, "rb")


def _get_size(path: str) -> int | None:
    """Returns the bytes of a file, or `None` if it is missing."""
    if not _is_remote(path):
        return os.path.getsize(path) if os.path.isfile(path) else None
    import tensorflow as tf

    return tf.io.gfile.stat(path).length if tf.io.gfile.exists(path) else None
