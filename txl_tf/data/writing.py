"""Writing the records of a data set."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from txl_tf.data.records import (
    JSON_NAME,
    VOCABULARY_NAME,
    RecordError,
    RecordsInfo,
    Shard,
    hash_file,
)
from txl_tf.data.vocabulary import Vocabulary


def write_records(
    data_dir: str | os.PathLike[str],
    *,
    dataset: str,
    vocabulary: Vocabulary,
    splits: Mapping[str, Iterable[np.ndarray]],
    cutoffs: Sequence[int] = (),
    tokens_per_record: int = 8192,
    tokens_per_shard: int = 2**27,
    overwrite: bool = False,
) -> RecordsInfo:
    """Writes a data set: shards of token ids, `vocab.txt` and, last, `records.json`.

    Everything is written into a temporary folder inside `data_dir` first. If the run is
    interrupted or the disk is full, an older data set in `data_dir` is as it was. A run that is
    killed leaves its `.writing-*` folder behind, which nothing reads and anyone may delete.

    Args:
        data_dir: The folder to write to; made if missing.
        dataset: The name of the data set.
        vocabulary: Its symbols.
        splits: For each split, chunks of ids in order: integer arrays of any length, read one at
            a time.
        cutoffs: Ids at which the adaptive softmax starts a new bin.
        tokens_per_record: Ids in a record.
        tokens_per_shard: The most ids in a file, rounded down to whole records (at least one).
        overwrite: Replace a data set that is there already.

    Returns:
        What was written, as in `records.json`.

    Raises:
        RecordError: If `data_dir` holds a data set and `overwrite` is False.
        ValueError: If an id is not in the vocabulary, or another argument is against its rule.
        OSError: If the files cannot be written.
    """
    folder = Path(data_dir)
    check_replaceable(folder, overwrite=overwrite)
    for name in splits:
        if not name.isidentifier():
            raise ValueError(f"The name of a split must be an identifier. Received: {name!r}")
    info = RecordsInfo(dataset, vocabulary, tuple(cutoffs), tokens_per_record, splits={})
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    # Inside the folder, not beside it: a folder may be a mount, and files move within one only.
    aside = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder))
    try:
        records_per_shard = max(1, tokens_per_shard // tokens_per_record)
        shards = {
            name: _write_split(aside, name, chunks, info, records_per_shard)
            for name, chunks in splits.items()
        }
        info = replace(info, splits=shards)
        lines = (_escape_symbol(symbol) + "\n" for symbol in vocabulary.symbols)
        (aside / VOCABULARY_NAME).write_text("".join(lines), encoding="utf-8", newline="\n")
        (aside / JSON_NAME).write_text(info.dumps(), encoding="utf-8", newline="\n")
        _move_into_place(aside, folder, info)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if is_new and not any(folder.iterdir()):
            folder.rmdir()
    return info


def check_replaceable(data_dir: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Checks that a data set may be written to a folder.

    Args:
        data_dir: The folder.
        overwrite: Whether a data set that is there may be replaced.

    Raises:
        RecordError: If `data_dir` holds a data set and `overwrite` is False.
    """
    if (Path(data_dir) / JSON_NAME).exists() and not overwrite:
        raise RecordError(
            f"`{data_dir}` already holds a data set; choose another folder, or pass "
            "`overwrite=True` (--overwrite) to replace it."
        )


def _write_split(
    folder: Path, name: str, chunks: Iterable[np.ndarray], info: RecordsInfo, records_per_shard: int
) -> tuple[Shard, ...]:
    """Writes the shards of one split into `folder`."""
    written: list[tuple[Path, int]] = []
    payloads = _pack_ids(name, chunks, info)
    payload = next(payloads, None)
    while payload is not None:
        path = folder / f"{name}-{len(written):05d}"
        n_bytes = 0
        with _open_writer(path) as writer:
            for _ in range(records_per_shard):
                writer.write(payload)
                n_bytes += len(payload)
                payload = next(payloads, None)
                if payload is None:
                    break
        written.append((path, n_bytes // info.dtype.itemsize))
    return tuple(_name_shard(path, tokens, len(written)) for path, tokens in written)


def _pack_ids(name: str, chunks: Iterable[np.ndarray], info: RecordsInfo) -> Iterator[bytes]:
    """Yields the payloads of a split's records, whatever the lengths of the chunks."""
    rest = np.zeros(0, info.dtype)
    n_tokens = 0
    for chunk in chunks:
        _check_chunk(name, chunk, n_tokens, len(info.vocabulary))
        n_tokens += len(chunk)
        ids = np.concatenate([rest, chunk.astype(info.dtype)])
        whole = len(ids) - len(ids) % info.tokens_per_record
        for record in ids[:whole].reshape(-1, info.tokens_per_record):
            yield record.tobytes()
        rest = ids[whole:].copy()
    if rest.size:
        yield rest.tobytes()


def _check_chunk(name: str, chunk: np.ndarray, position: int, n_symbols: int) -> None:
    if chunk.ndim != 1 or chunk.dtype.kind not in "iu":
        raise ValueError(
            f"`splits` must yield rows of integers. Received for {name!r}: shape={chunk.shape}, "
            f"dtype={chunk.dtype}"
        )
    wrong = (chunk < 0) | (chunk >= n_symbols)
    if wrong.any():
        offset = int(wrong.argmax())
        raise ValueError(
            f"Ids must be at least 0 and below {n_symbols}, the size of the vocabulary. "
            f"Received for {name!r}: id {chunk[offset]} at token {position + offset}"
        )


@contextmanager
def _open_writer(path: Path) -> Iterator[Any]:
    """Opens a `tf.io.TFRecordWriter` whose failures are `OSError`s, as those of Python's files."""
    # Imported here: reading records must not take the seconds that tensorflow takes to import.
    import tensorflow as tf

    try:
        with tf.io.TFRecordWriter(str(path)) as writer:
            yield writer
    except tf.errors.ResourceExhaustedError as error:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, error.message, str(path)) from error


def _name_shard(path: Path, tokens: int, n_shards: int) -> Shard:
    """Gives a finished shard its name, which ends in the start of its SHA-256."""
    with path.open("rb") as file:
        digest = hash_file(file)
    named = path.with_name(f"{path.name}-of-{n_shards:05d}-{digest[:8]}.tfrecords")
    path.rename(named)
    return Shard(named.name, tokens, named.stat().st_size, digest)


def _move_into_place(aside: Path, folder: Path, info: RecordsInfo) -> None:
    """Moves a finished data set from `aside` to `folder`, then removes the shards it replaces."""
    replaced = _find_shards(folder)
    files = {shard.file for shards in info.splits.values() for shard in shards}
    for file in (*sorted(files), VOCABULARY_NAME, JSON_NAME):
        os.replace(aside / file, folder / file)
    for file in replaced - files:
        (folder / file).unlink(missing_ok=True)


def _find_shards(folder: Path) -> set[str]:
    """Returns the names of the shards that `records.json` in `folder` lists, if it can be read."""
    try:
        info = RecordsInfo.loads((folder / JSON_NAME).read_bytes())
    except (FileNotFoundError, RecordError):
        return set()
    return {shard.file for shards in info.splits.values() for shard in shards}


def _escape_symbol(symbol: str) -> str:
    """Returns a symbol as it can stand on a line of its own."""
    return symbol if symbol.isprintable() else symbol.encode("unicode_escape").decode("ascii")
