"""Writing the records of a data set."""

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from txl_tf.data.aside import work_aside
from txl_tf.data.files import (
    check_folder,
    get_size,
    is_remote,
    join_path,
    open_file,
    remove_file,
    upload_files,
)
from txl_tf.data.records import (
    JSON_NAME,
    SYMBOLS_NAME,
    Documents,
    RecordError,
    RecordsInfo,
    Shard,
)
from txl_tf.data.shards import TokenChunk, write_split
from txl_tf.data.vocabulary import Vocabulary


def write_records(
    data_dir: str | os.PathLike[str],
    *,
    dataset: str,
    vocabulary: Vocabulary,
    splits: Mapping[str, Iterable[np.ndarray | TokenChunk]],
    cutoffs: Sequence[int] = (),
    tokens_per_record: int = 8192,
    tokens_per_shard: int = 2**27,
    made_from: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> RecordsInfo:
    """Writes a data set: shards of token ids, `vocab.txt` and, last, `records.json`.

    Everything is written into a temporary folder inside `data_dir` first. If the run is
    interrupted or the disk is full, an older data set in `data_dir` is as it was. A run that is
    killed leaves its `.writing-*` folder behind, which nothing reads; the next one removes it.
    What goes to a remote `data_dir` is written here first and copied when it is whole, the listing
    in `records.json` last.

    Args:
        data_dir: The folder to write to, or an address such as "gs://bucket/folder"; made if
            missing.
        dataset: The name of the data set.
        vocabulary: Its symbols.
        splits: For each split, chunks of ids in order, read one at a time: integer arrays of any
            length, or with their documents as `TokenChunk`.
        cutoffs: Ids at which the adaptive softmax starts a new bin.
        tokens_per_record: Ids in a record.
        tokens_per_shard: The most ids in a file, rounded down to whole records (at least one).
        made_from: What to remember of how the data set was made; anything that JSON holds.
        overwrite: Replace a data set that is there already.

    Returns:
        What was written, as in `records.json`.

    Raises:
        RecordError: If `data_dir` holds a data set and `overwrite` is False, or is a file.
        ValueError: If an id is not in the vocabulary, or another argument is against its rule.
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
        documents: dict[str, Documents] = {}
        for name, chunks in splits.items():
            shards[name], found = write_split(
                aside, name, _iterate_chunks(chunks), info, records_per_shard
            )
            if found:
                documents[name] = found
        info = replace(info, splits=shards, documents=documents)
        lines = (_write_symbol(symbol, vocabulary.level) + "\n" for symbol in vocabulary.symbols)
        (aside / SYMBOLS_NAME).write_text("".join(lines), encoding="utf-8", newline="\n")
        (aside / JSON_NAME).write_text(info.dumps(), encoding="utf-8", newline="\n")
        check_replaceable(folder, overwrite=overwrite)  # another run may have written one since
        _move_into_place(aside, folder, info)
    return info


def holds_records(data_dir: str | os.PathLike[str]) -> bool:
    """Tells whether there is a data set in a folder, or at an address."""
    return get_size(join_path(os.fspath(data_dir), JSON_NAME)) is not None


def check_replaceable(data_dir: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Checks that a data set may be written to a folder.

    Args:
        data_dir: The folder.
        overwrite: Whether a data set that is there may be replaced.

    Raises:
        RecordError: If `data_dir` holds a data set and `overwrite` is False.
    """
    if holds_records(data_dir) and not overwrite:
        raise RecordError(
            f"`{data_dir}` already holds a data set; choose another folder, or pass "
            "`overwrite=True` (--overwrite) to replace it."
        )


def _iterate_chunks(chunks: Iterable[np.ndarray | TokenChunk]) -> Iterator[TokenChunk]:
    for chunk in chunks:
        yield chunk if isinstance(chunk, TokenChunk) else TokenChunk(chunk)


@contextmanager
def _work_aside(data_dir: str) -> Iterator[Path]:
    if not is_remote(data_dir):
        with work_aside(Path(data_dir), ".writing-") as aside:
            yield aside
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def _move_into_place(aside: Path, folder: str, info: RecordsInfo) -> None:
    """Moves a finished data set from `aside` to `folder`, then removes the shards it replaces."""
    replaced = _find_files(folder)
    files = {file.file for file in info.iterate_files()}
    names = (*sorted(files), SYMBOLS_NAME, JSON_NAME)
    if is_remote(folder):
        upload_files(aside, folder, names)
    else:
        for name in names:
            os.replace(aside / name, join_path(folder, name))
    for name in replaced - files:
        remove_file(join_path(folder, name))


def _find_files(folder: str) -> set[str]:
    """Returns the files that `records.json` in `folder` lists, if it can be read."""
    if not holds_records(folder):
        return set()
    try:
        with open_file(join_path(folder, JSON_NAME)) as file:
            info = RecordsInfo.loads(file.read())
    except RecordError:
        return set()
    return {file.file for file in info.iterate_files()}


def _write_symbol(symbol: str, level: str) -> str:
    """Returns a symbol as it can stand on a line of its own; a word can as it is."""
    if level == "word" or symbol.isprintable():
        return symbol
    return symbol.encode("unicode_escape").decode("ascii")
