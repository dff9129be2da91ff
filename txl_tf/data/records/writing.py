"""Writing the records of a data set."""

import hashlib
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from txl_tf.data.files import (
    check_folder,
    get_size,
    is_remote,
    join_path,
    remove_file,
    upload_files,
    write_json,
)
from txl_tf.data.records.format import (
    JSON_NAME,
    SYMBOLS_NAME,
    DocumentsFile,
    RecordError,
    RecordsInfo,
    Shard,
    pack_ids,
    pack_record,
)
from txl_tf.data.records.reading import name_folder, read_info
from txl_tf.data.temporary_folders import work_aside
from txl_tf.data.text.codec import NO_OFFSETS
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import StorageError, check_integer, explain

TOKENS_PER_RECORD, TOKENS_PER_SHARD = 8192, 2**27
_GAPS_PER_BLOCK = 2**16
_ASIDE = ".writing-"  # in the name of the temporary folder


class TokenChunk(NamedTuple):
    """Consecutive tokens of a split.

    Attributes:
        ids: The ids, (n,) integers.
        document_starts: The ascending indices in `ids` at which documents begin, (k,) int64.
    """

    ids: np.ndarray
    document_starts: np.ndarray = NO_OFFSETS


def write_records(
    data_dir: str | os.PathLike[str],
    *,
    dataset: str,
    vocabulary: Vocabulary,
    splits: Mapping[str, Iterable[np.ndarray | TokenChunk]],
    cutoffs: Sequence[int] = (),
    tokens_per_record: int = TOKENS_PER_RECORD,
    tokens_per_shard: int = TOKENS_PER_SHARD,
    made_from: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> RecordsInfo:
    """Writes a data set: shards of token ids, `vocab.txt` and finally `records.json`.

    All files are first written to a temporary folder inside `data_dir`, so an interruption or a
    full disk leaves an older data set in `data_dir` unchanged. A killed process leaves its
    `.writing-*` folder behind, which is never read; the next call removes it. If `data_dir` is
    remote, the data set is completed in a local folder and then uploaded, `records.json` last.

    In the 2019 code: `convert_to_tfrecords`.

    Args:
        data_dir: The folder to write to, created if it is missing, or an address such as
            "gs://bucket/folder".
        dataset: The name of the data set.
        vocabulary: The vocabulary.
        splits: The tokens of each split as consecutive chunks, which are read one at a time:
            integer arrays of any length, or `TokenChunk`s, which include document boundaries.
        cutoffs: The first ids of the second and later bins of the adaptive softmax.
        tokens_per_record: The number of ids in a record.
        tokens_per_shard: The largest number of ids in a shard, rounded down to whole records (but
            at least one).
        made_from: A description of how the data set was made, which JSON must be able to represent.
        overwrite: Whether to replace an existing data set.

    Returns:
        The content of `records.json`.

    Raises:
        RecordError: If `data_dir` contains a data set and `overwrite` is False, or if it is a file
            or empty.
        ValueError: If an id is not in the vocabulary, or another argument breaks its rule.
        OSError: If the files cannot be written.
    """
    folder = name_folder(data_dir)
    check_replaceable(folder, overwrite=overwrite)
    check_folder(folder, RecordError)
    for name in splits:
        if not name.isidentifier():
            raise ValueError(f"The name of a split must be an identifier. Received: {name!r}")
    info = RecordsInfo(
        dataset,
        vocabulary,
        tuple(check_integer("cutoff", cutoff, 1) for cutoff in cutoffs),
        check_integer("tokens_per_record", tokens_per_record, 1),
        {},
        made_from=made_from or {},
    )
    check_integer("tokens_per_shard", tokens_per_shard, 1)
    records_per_shard = max(1, tokens_per_shard // tokens_per_record)
    with _explain_writing(folder), _work_aside(folder) as aside:
        shards: dict[str, tuple[Shard, ...]] = {}
        documents: dict[str, DocumentsFile] = {}
        for name, chunks in splits.items():
            shards[name], found = write_split(aside, name, chunks, info, records_per_shard)
            if found:
                documents[name] = found
        info = replace(info, splits=shards, documents=documents)
        symbols = [f"{_escape(symbol, vocabulary.level)}\n" for symbol in vocabulary.symbols]
        (aside / SYMBOLS_NAME).write_text("".join(symbols), encoding="utf-8", newline="\n")
        write_json(str(aside / JSON_NAME), info.to_json())
        check_replaceable(folder, overwrite=overwrite)  # another process may have written one
        _move_into_place(aside, folder, info)
    return info


def holds_records(data_dir: str | os.PathLike[str]) -> bool:
    """Returns whether a local or remote folder contains a data set."""
    return get_size(join_path(os.fspath(data_dir), JSON_NAME)) is not None


def check_replaceable(folder: str, *, overwrite: bool) -> None:
    """Checks that a folder holds no data set, unless it may be replaced."""
    if holds_records(folder) and not overwrite:
        raise RecordError(
            f"`{folder}` already holds a data set. Choose another folder, or replace it with "
            "`overwrite=True` (--overwrite)."
        )


class _HashedFile:
    """A file that is hashed while it is written, and whose final name contains the hash."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self._digest = hashlib.sha256()
        self._size = 0

    def close(self) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._size += len(data)

    def rename(self, pattern: str) -> dict[str, Any]:
        """Renames the file to a pattern filled with the hash, and returns fields of a `Shard`."""
        digest = self._digest.hexdigest()
        name = pattern.format(digest[:8])
        self._path.rename(self._path.with_name(name))
        return {"file": name, "bytes": self._size, "sha256": digest}


class _DocumentsPacker:
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


def write_split(
    folder: Path,
    name: str,
    chunks: Iterable[np.ndarray | TokenChunk],
    info: RecordsInfo,
    records_per_shard: int,
) -> tuple[tuple[Shard, ...], DocumentsFile | None]:
    """Writes the shards of a split, and the file of its document boundaries if it has any.

    In the 2019 code: `create_ordered_tfrecords`.
    """
    documents_path, packer = folder / f"{name}-documents", _DocumentsPacker()
    written: list[tuple[_HashedFile, int]] = []
    with closing(_HashedFile(documents_path)) as documents:

        def pack_chunks() -> Iterator[np.ndarray]:
            position = 0
            for chunk in chunks:
                chunk = chunk if isinstance(chunk, TokenChunk) else TokenChunk(chunk)
                _check_chunk(name, chunk, position, len(info.vocabulary))
                documents.write(packer.pack(chunk.document_starts + position))
                position += len(chunk.ids)
                yield pack_ids(chunk.ids, info.bytes_per_token)

        payloads = enumerate(_cut_payloads(pack_chunks(), info.tokens_per_record))
        for index, shard in groupby(payloads, lambda item: item[0] // records_per_shard):
            n_bytes = 0
            with closing(_HashedFile(folder / f"{name}-{index:05d}")) as file:
                for _, payload in shard:
                    file.write(pack_record(payload))
                    n_bytes += len(payload)
            written.append((file, n_bytes // info.bytes_per_token))
        documents.write(packer.finish())
    ending = f"-of-{len(written):05d}-{{}}.tfrecords"
    shards = tuple(
        Shard(tokens=n_tokens, **file.rename(f"{name}-{index:05d}{ending}"))
        for index, (file, n_tokens) in enumerate(written)
    )
    if not packer.count:
        documents_path.unlink()
        return shards, None
    described = documents.rename(f"{name}-documents-{{}}.zlib")
    return shards, DocumentsFile(count=packer.count, **described)


def _cut_payloads(packed: Iterable[np.ndarray], tokens_per_record: int) -> Iterator[bytes]:
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


def _check_chunk(name: str, chunk: TokenChunk, position: int, n_symbols: int) -> None:
    """Checks the ids of a chunk at a position of a split, and its document boundaries."""
    ids = chunk.ids
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(
            f"`splits` must yield rows of integers. Received for {name!r}: shape={ids.shape}, "
            f"dtype={ids.dtype}"
        )
    if ids.size and (ids.min() < 0 or ids.max() >= n_symbols):
        offset = int(((ids < 0) | (ids >= n_symbols)).argmax())
        raise ValueError(
            f"Ids must be at least 0 and below {n_symbols}, the size of the vocabulary. "
            f"Received for {name!r}: id {ids[offset]} at token {position + offset}"
        )
    starts = chunk.document_starts
    if (np.diff(np.concatenate([[-1], starts, [len(ids)]])) <= 0).any():
        raise ValueError(
            "`document_starts` must be ascending indices within the chunk. "
            f"Received: {starts[:8].tolist()} for {len(ids)} tokens"
        )


@contextmanager
def _work_aside(data_dir: str) -> Iterator[Path]:
    if not is_remote(data_dir):
        with work_aside(Path(data_dir), _ASIDE) as aside:
            yield aside
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@contextmanager
def _explain_writing(folder: str) -> Iterator[None]:
    """Re-raises errors of writing, such as a full disk, which name no file or a temporary one."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and _ASIDE not in str(error.filename):
            raise  # a text that cannot be read
        root = folder.rstrip("/")
        places = (_ASIDE, f"`{root}`", f"`{root}/")
        if isinstance(error, StorageError) and not any(place in str(error) for place in places):
            raise  # a remote text that cannot be read
        raise StorageError(
            f"`{folder}` cannot be written: {explain(error.__cause__ or error)}"
        ) from error


def _escape(symbol: str, level: str) -> str:
    """Returns a symbol without line breaks and control characters; words never contain any."""
    if level == "word" or symbol.isprintable():
        return symbol
    return symbol.encode("unicode_escape").decode("ascii")


def _move_into_place(aside: Path, folder: str, info: RecordsInfo) -> None:
    """Moves a finished data set from `aside` to `folder`, then removes the files it replaces."""
    replaced: set[str] = set()
    with suppress(RecordError):  # there is none
        replaced = {file.file for file in read_info(folder).iterate_files()}
    files = {file.file for file in info.iterate_files()}
    names = (*sorted(files), SYMBOLS_NAME, JSON_NAME)
    if is_remote(folder):
        upload_files(aside, folder, names)
    else:
        for name in names:
            os.replace(aside / name, join_path(folder, name))
    for name in replaced - files:
        remove_file(join_path(folder, name))
