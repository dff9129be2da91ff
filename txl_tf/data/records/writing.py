"""Writing the records of a data set."""

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
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
from txl_tf.data.records.reading import read_info
from txl_tf.data.records.record_files import DocumentsPacker, HashedFile, cut_payloads
from txl_tf.data.temporary_folders import work_aside
from txl_tf.data.text.codec import NO_OFFSETS
from txl_tf.data.text.vocabulary import Vocabulary

TOKENS_PER_RECORD, TOKENS_PER_SHARD = 8192, 2**27


class TokenChunk(NamedTuple):
    """Consecutive tokens of a split.

    Attributes:
        ids: The ids, (n,) of integers.
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
    `.writing-*` folder behind, which is never read and which the next call removes. If `data_dir`
    is remote, the data set is completed in a local folder and then uploaded, `records.json` last.

    Args:
        data_dir: The folder to write to, created if it is missing, or an address such as
            "gs://bucket/folder".
        dataset: The name of the data set.
        vocabulary: The vocabulary.
        splits: The tokens of each split as chunks in order, which are read one at a time: integer
            arrays of any length, or `TokenChunk`s, which include document boundaries.
        cutoffs: The first ids of the second and later bins of the adaptive softmax.
        tokens_per_record: The number of ids in a record.
        tokens_per_shard: The largest number of ids in a shard, rounded down to whole records (but
            at least one).
        made_from: A description of how the data set was made; anything that JSON can represent.
        overwrite: Whether to replace an existing data set.

    Returns:
        The content of `records.json`.

    Raises:
        RecordError: If `data_dir` contains a data set and `overwrite` is False, or if it is a file.
        ValueError: If an id is not in the vocabulary, or another argument breaks its rule.
        OSError: If the files cannot be written.
    """
    folder = os.fspath(data_dir)
    check_replaceable(folder, overwrite=overwrite)
    check_folder(folder, RecordError)
    for name in splits:
        if not name.isidentifier():
            raise ValueError(f"The name of a split must be an identifier. Received: {name!r}")
    info = RecordsInfo(
        dataset, vocabulary, tuple(cutoffs), tokens_per_record, {}, made_from=made_from or {}
    )
    records_per_shard = max(1, tokens_per_shard // tokens_per_record)
    with _work_aside(folder) as aside:
        shards: dict[str, tuple[Shard, ...]] = {}
        documents: dict[str, DocumentsFile] = {}
        for name, chunks in splits.items():
            token_chunks = (
                chunk if isinstance(chunk, TokenChunk) else TokenChunk(chunk) for chunk in chunks
            )
            shards[name], found = write_split(aside, name, token_chunks, info, records_per_shard)
            if found:
                documents[name] = found
        info = replace(info, splits=shards, documents=documents)
        for file, text in describe_records(info).items():
            (aside / file).write_text(text, encoding="utf-8", newline="\n")
        check_replaceable(folder, overwrite=overwrite)  # another process may have written one
        _move_into_place(aside, folder, info)
    return info


def holds_records(data_dir: str | os.PathLike[str]) -> bool:
    """Returns whether a local or remote folder contains a data set."""
    return get_size(join_path(os.fspath(data_dir), JSON_NAME)) is not None


def check_replaceable(folder: str, *, overwrite: bool) -> None:
    """Checks that a folder holds no data set, unless it may be replaced.

    Raises:
        RecordError: If it holds one.
    """
    if holds_records(folder) and not overwrite:
        raise RecordError(
            f"`{folder}` already holds a data set. Choose another folder, or replace it with "
            "`overwrite=True` (--overwrite)."
        )


def write_split(
    folder: Path,
    name: str,
    chunks: Iterable[TokenChunk],
    info: RecordsInfo,
    records_per_shard: int,
) -> tuple[tuple[Shard, ...], DocumentsFile | None]:
    """Writes the shards of a split, and the file of its document boundaries if it has any.

    Args:
        folder: The folder to write to.
        name: The name of the split.
        chunks: The tokens, read one chunk at a time.
        info: The vocabulary and the size of a record.
        records_per_shard: The largest number of records in a shard.

    Returns:
        The files.

    Raises:
        ValueError: If an id is not in the vocabulary, or the document boundaries of a chunk are not
            ascending indices of its tokens.
        OSError: If a file cannot be written.
    """
    documents = _DocumentsWriter(folder, name)
    # None marks the end, so that a shard can be closed before the next record is computed.
    records = _iterate_records(name, documents.watch(chunks), info)
    written: list[tuple[Path, HashedFile, int]] = []
    record = next(records, None)
    while record is not None:
        n_bytes = 0
        path = folder / f"{name}-{len(written):05d}"
        with closing(HashedFile(path.open("wb"))) as file:
            for _ in range(records_per_shard):
                file.write(pack_record(record))
                n_bytes += len(record)
                record = next(records, None)
                if record is None:
                    break
        written.append((path, file, n_bytes // info.bytes_per_token))
    shards = tuple(
        file.describe_shard(name, index, len(written), tokens)
        for index, (_, file, tokens) in enumerate(written)
    )
    for (path, _, _), shard in zip(written, shards, strict=True):
        path.rename(path.with_name(shard.file))
    return shards, documents.finish()


def _iterate_records(name: str, chunks: Iterable[TokenChunk], info: RecordsInfo) -> Iterator[bytes]:
    """Yields the payloads of a split's records, regardless of the lengths of the chunks."""

    def pack() -> Iterator[np.ndarray]:
        n_tokens = 0
        for chunk in chunks:
            _check_ids(name, chunk.ids, n_tokens, len(info.vocabulary))
            n_tokens += len(chunk.ids)
            yield pack_ids(chunk.ids, info.bytes_per_token)

    return cut_payloads(pack(), info.tokens_per_record)


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


class _DocumentsWriter:
    """Writes the document boundaries of a split while its chunks pass by."""

    def __init__(self, folder: Path, split: str) -> None:
        self._path = folder / f"{split}-documents"
        self._split = split
        self._file: HashedFile | None = None
        self._packer = DocumentsPacker()

    def watch(self, chunks: Iterable[TokenChunk]) -> Iterator[TokenChunk]:
        """Yields the chunks unchanged, and writes their document boundaries."""
        position = 0
        for chunk in chunks:
            starts = np.asarray(chunk.document_starts, np.int64)
            inside = np.concatenate([[-1], starts, [len(chunk.ids)]])
            if (np.diff(inside) <= 0).any():
                raise ValueError(
                    "`document_starts` must be ascending indices within the chunk. "
                    f"Received: {starts[:8].tolist()} for {len(chunk.ids)} tokens"
                )
            if starts.size:
                if self._file is None:
                    self._file = HashedFile(self._path.open("wb"))
                self._file.write(self._packer.pack(starts + position))
            position += len(chunk.ids)
            yield chunk

    def finish(self) -> DocumentsFile | None:
        """Closes the file and returns its description; `None` if there are no boundaries."""
        if self._file is None:
            return None
        with closing(self._file):
            self._file.write(self._packer.finish())
        documents = self._file.describe_documents(self._split, self._packer.count)
        self._path.rename(self._path.with_name(documents.file))
        return documents


@contextmanager
def _work_aside(data_dir: str) -> Iterator[Path]:
    if not is_remote(data_dir):
        with work_aside(Path(data_dir), ".writing-") as aside:
            yield aside
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def describe_records(info: RecordsInfo) -> dict[str, str]:
    """Returns the texts of the files that describe a data set, by name: `records.json` is last."""
    vocabulary = info.vocabulary
    lines = (_escape(symbol, vocabulary.level) + "\n" for symbol in vocabulary.symbols)
    return {SYMBOLS_NAME: "".join(lines), JSON_NAME: info.dumps()}


def _move_into_place(aside: Path, folder: str, info: RecordsInfo) -> None:
    """Moves a finished data set from `aside` to `folder`, then removes the files it replaces."""
    replaced = list_files(folder)
    files = {file.file for file in info.iterate_files()}
    names = (*sorted(files), SYMBOLS_NAME, JSON_NAME)
    if is_remote(folder):
        upload_files(aside, folder, names)
    else:
        for name in names:
            os.replace(aside / name, join_path(folder, name))
    for name in replaced - files:
        remove_file(join_path(folder, name))


def list_files(folder: str) -> set[str]:
    """Returns the files that the `records.json` in a folder lists, if it is there and readable."""
    try:
        return {file.file for file in read_info(folder).iterate_files()}
    except RecordError:
        return set()


def _escape(symbol: str, level: str) -> str:
    """Returns a symbol without line breaks and control characters; words never contain any."""
    if level == "word" or symbol.isprintable():
        return symbol
    return symbol.encode("unicode_escape").decode("ascii")
