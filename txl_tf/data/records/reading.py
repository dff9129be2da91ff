"""Reading the records of a data set at any position."""

import bisect
import difflib
import hashlib
import os
import zlib
from functools import cached_property
from itertools import accumulate
from typing import IO

import numpy as np

from txl_tf.data.files import get_size, hash_file, join_path, open_file
from txl_tf.data.records.format import (
    FRAME_BYTES,
    JSON_NAME,
    DocumentsFile,
    RecordError,
    RecordsInfo,
    Shard,
    unpack_ids,
    unpack_record,
)


class Split:
    """The tokens of one split, read from its shards at any position.

    A split holds neither open files nor tokens, so threads and processes may share it.

    Args:
        data_dir: The folder of the data set.
        name: The name of the split.
        info: The content of the folder's `records.json`.
    """

    def __init__(self, data_dir: str, name: str, info: RecordsInfo) -> None:
        self.name = name
        self._data_dir = data_dir
        self._info = info
        self._shards = info.splits[name]
        self._ends = list(accumulate(shard.tokens for shard in self._shards))

    @property
    def n_token(self) -> int:
        """The size of the vocabulary."""
        return len(self._info.vocabulary)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, stop: int) -> np.ndarray:
        """Reads the tokens from `start` up to, but not including, `stop`.

        Args:
            start: The position of the first token.
            stop: The position after the last token.

        Returns:
            The ids, (stop - start,) int32.

        Raises:
            ValueError: If the positions are not ascending within the split.
            RecordError: If a record is damaged or holds an id that is out of range.
        """
        if not 0 <= start <= stop <= len(self):
            raise ValueError(
                f"`start` and `stop` must be ascending within the {len(self)} tokens of "
                f"{self.name!r}. Received: start={start}, stop={stop}"
            )
        ids = np.empty(stop - start, np.int32)
        low = start
        while low < stop:
            index = bisect.bisect(self._ends, low)
            shard, end = self._shards[index], self._ends[index]
            begin, high = end - shard.tokens, min(stop, end)
            self._read_shard(shard, low - begin, high - begin, ids[low - start : high - start])
            low = high
        return ids

    @cached_property
    def document_starts(self) -> np.ndarray:
        """The ascending positions at which documents begin, (k,) int64; empty if not known.

        Raises:
            RecordError: If the file of the document boundaries is damaged.
        """
        documents = self._info.documents.get(self.name)
        if documents is None:
            return np.zeros(0, np.int64)
        path = join_path(self._data_dir, documents.file)
        with open_file(path) as file:
            packed = file.read()
        try:
            # Each token begins at most one document; without this limit, a few bytes could unpack
            # to any size.
            n_bytes = 8 * (min(documents.count, len(self)) + 1)
            gaps = np.frombuffer(zlib.decompressobj().decompress(packed, n_bytes), "<u8")
        except (zlib.error, ValueError) as error:
            raise RecordError(f"`{path}`: corrupt, {error}.") from error
        starts = np.cumsum(gaps.astype(np.int64))
        if hashlib.sha256(packed).hexdigest() != documents.sha256 or len(starts) != documents.count:
            raise RecordError(f"`{path}`: corrupt, it is not the file that {JSON_NAME} lists.")
        return starts

    def _read_shard(self, shard: Shard, start: int, stop: int, out: np.ndarray) -> None:
        """Reads tokens `start` to `stop` of a shard into `out`, (stop - start,) int32."""
        per_record = self._info.tokens_per_record
        first = start // per_record
        with open_file(join_path(self._data_dir, shard.file)) as file:
            file.seek(first * self._info.record_bytes)
            for record in range(first, -(-stop // per_record)):
                begin = record * per_record
                tokens = self._read_record(file, shard, record)
                low, high = max(start, begin), min(stop, begin + per_record)
                out[low - start : high - start] = tokens[low - begin : high - begin]

    def _read_record(self, file: IO[bytes], shard: Shard, record: int) -> np.ndarray:
        """Reads and checks the record at the position of `file`; returns its ids, (n,) int32."""
        per_record = self._info.tokens_per_record
        n_tokens = min(per_record, shard.tokens - record * per_record)
        n_bytes = n_tokens * self._info.bytes_per_token
        payload = unpack_record(file.read(n_bytes + FRAME_BYTES), n_bytes)
        where = f"`{join_path(self._data_dir, shard.file)}`, record {record}"
        if payload is None:
            raise RecordError(f"{where}: corrupt, its checksum or length is wrong.")
        ids = unpack_ids(payload, self._info.bytes_per_token)
        highest = int(ids.max())
        if highest >= len(self._info.vocabulary):
            raise RecordError(
                f"{where}: holds the id {highest}, but the vocabulary has "
                f"{len(self._info.vocabulary)} symbols."
            )
        return ids


class Records:
    """A data set in a folder; use `open_records` to open one.

    Args:
        data_dir: The folder of the data set.
        info: The content of the folder's `records.json`.

    Attributes:
        data_dir: The folder of the data set.
        info: The content of `records.json`.
        dataset: The name of the data set.
        vocabulary: The vocabulary.
        n_token: The number of symbols; ids are below it.
        cutoffs: The first ids of the second and later bins of the adaptive softmax.
        splits: The names of the splits.
        made_from: The files and arguments that the data set was made from.
    """

    def __init__(self, data_dir: str, info: RecordsInfo) -> None:
        self.data_dir = data_dir
        self.dataset = info.dataset
        self.vocabulary = info.vocabulary
        self.n_token = len(info.vocabulary)
        self.cutoffs = info.cutoffs
        self.splits = tuple(info.splits)
        self.made_from = info.made_from
        self.info = info
        self._splits = {name: Split(data_dir, name, info) for name in info.splits}

    def n_documents(self, split: str) -> int:
        """Returns the number of documents of a split; 0 if their boundaries are not known.

        Raises:
            RecordError: If there is no such split.
        """
        documents = self.info.documents.get(self.split(split).name)
        return documents.count if documents else 0

    @property
    def checksums(self) -> dict[str, str]:
        """A checksum of each split: the SHA-256 of the checksums of its files."""
        sums = {name: "".join(x.sha256 for x in files) for name, files in self.info.splits.items()}
        for name, documents in self.info.documents.items():
            sums[name] += documents.sha256
        return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sums.items()}

    def n_bytes(self, split: str) -> int:
        """Returns the size of a split's shards in bytes.

        Raises:
            RecordError: If there is no such split.
        """
        return sum(shard.bytes for shard in self.info.splits[self.split(split).name])

    def n_tokens(self, split: str) -> int:
        """Returns the number of tokens of a split.

        Raises:
            RecordError: If there is no such split.
        """
        return len(self.split(split))

    def split(self, name: str) -> Split:
        """Returns the tokens of a split.

        Raises:
            RecordError: If there is no such split.
        """
        if name not in self._splits:
            near = difflib.get_close_matches(str(name), self.splits, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise RecordError(
                f"`{self.data_dir}` has no split {name!r}; it has {', '.join(self.splits)}.{hint}"
            )
        return self._splits[name]


def open_records(data_dir: str | os.PathLike[str]) -> Records:
    """Opens a data set and checks that all its shards are present and have the right size.

    In the 2019 code: `get_corpus_info`.

    Args:
        data_dir: The folder, or an address such as "gs://bucket/folder".

    Returns:
        The data set.

    Raises:
        RecordError: If the folder holds no records, they have a different format version, or a
            shard is missing or has the wrong size.
    """
    folder = name_folder(data_dir)
    info = read_info(folder)
    for file in info.iterate_files():
        _check_size(folder, file)
    return Records(folder, info)


def name_folder(data_dir: str | os.PathLike[str]) -> str:
    """Returns the folder of a data set as text; an empty one would mean the root folder."""
    folder = os.fspath(data_dir)
    if not folder:
        raise RecordError('`data_dir` must not be empty; "." is the current folder')
    return folder


def read_ids(records_dir: str | os.PathLike[str], split: str) -> np.ndarray:
    """Reads all tokens of a split, in order.

    Args:
        records_dir: The folder of the data set.
        split: The name of the split.

    Returns:
        The ids, (n,) int32.

    Raises:
        RecordError: If the data set is damaged or has no such split.
    """
    tokens = open_records(records_dir).split(split)
    return tokens.read(0, len(tokens))


def verify_records(data_dir: str | os.PathLike[str]) -> None:
    """Reads every byte of a data set and compares the SHA-256 of each file with `records.json`.

    Args:
        data_dir: The folder of the data set.

    Raises:
        RecordError: As in `open_records`, or if the content of a file has changed.
    """
    folder = os.fspath(data_dir)
    for listed in open_records(folder).info.iterate_files():
        path = join_path(folder, listed.file)
        found = hash_file(path)
        if found != listed.sha256:
            raise RecordError(f"`{path}`: expected SHA-256 {listed.sha256}, found {found}.")


def read_info(folder: str) -> RecordsInfo:
    """Reads the `records.json` of a folder.

    In the 2019 code: `load_record_info`.
    """
    path = join_path(folder, JSON_NAME)
    if get_size(path) is None:
        if get_size(join_path(folder, "data.json")) is not None:
            raise RecordError(
                f"`{folder}` is a run; its data.json names the folder of its records."
            )
        raise RecordError(
            f"`{folder}` holds no records. Make them with: "
            f"txl prepare --dataset NAME --data_dir {folder}"
        )
    with open_file(path) as file:
        text = file.read()
    try:
        return RecordsInfo.loads(text)
    except RecordError as error:
        raise RecordError(f"`{path}`: {error}") from error


def _check_size(folder: str, listed: Shard | DocumentsFile) -> None:
    path = join_path(folder, listed.file)
    found = get_size(path)
    if found is None:
        raise RecordError(f"`{path}` is missing, but {JSON_NAME} lists it. Make the records again.")
    if found != listed.bytes:
        raise RecordError(
            f"`{path}` must have {listed.bytes} bytes, and has {found}. Make the records again."
        )
