"""Encoding pieces of text, and assembling shards of records from them, with many workers."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from apache_beam.utils.shared import Shared

from txl_tf.apps.beam.file_ranges import find_range, restore_file, resume_documents
from txl_tf.apps.beam.storage import BeamStorage, create_file, name_once, read_file
from txl_tf.apps.beam.tasks import Task
from txl_tf.data.records.format import DocumentsFile, Shard, pack_ids, pack_record
from txl_tf.data.records.record_files import DocumentsPacker, HashedFile, cut_payloads
from txl_tf.data.records.writing import TokenChunk
from txl_tf.data.text.documents import DocumentFinder
from txl_tf.data.text.text_files import EncodingErrors, TextSource
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.preparation.encoding import encode_source

_BLOCK_BYTES = 2**22


@dataclass
class EncodingStage:
    """Encodes pieces; the result of each describes the files of its ids and documents.

    Args:
        folder: The folder of these files.
        vocabulary_path: The file of the vocabulary, which each process reads once.
        bytes_per_token: The size of a stored id.
        encoding_errors: As in `TextSource`.
        documents: The rule for where documents begin.
        separator: The line that ends a document.
        special: As in `encode_source`.
        piece_bytes: The size of a piece in bytes.
    """

    folder: str
    vocabulary_path: str
    bytes_per_token: int
    encoding_errors: EncodingErrors
    documents: str
    separator: str | None
    special: tuple[str, ...]
    piece_bytes: int
    name: str = "encoded"
    shared: Shared = field(default_factory=Shared)

    def setup(self) -> None:
        """Reads the vocabulary."""
        path = self.vocabulary_path
        self._vocabulary = self.shared.acquire(
            lambda: Vocabulary.from_json(json.loads(read_file(path))), tag=path
        )

    def run(self, index: int, task: Task) -> Task:
        """Encodes a piece.

        Raises:
            UserError: If it cannot be read.
        """
        files = tuple(find_range(restore_file(file), self.piece_bytes) for file in task["files"])
        finder = DocumentFinder(self.documents, self.separator)
        resume_documents(finder, files[0])
        unknown: Counter[str] = Counter()
        literal: Counter[str] = Counter()
        chunks = encode_source(
            TextSource(files, self._vocabulary.level, self.encoding_errors),
            self._vocabulary,
            finder=finder,
            unknown=unknown,
            special=self.special,
            literal=literal,
            is_piece=True,
        )
        written = self._write(f"{task['split']}-{index:07d}", chunks)
        if unknown and self._vocabulary.unknown is not None:
            unknown = Counter({self._vocabulary.unknown: unknown.total()})  # names are not needed
        return {**written, "split": task["split"], "unknown": unknown, "literal": literal}

    def _write(self, name: str, chunks: Iterable[TokenChunk]) -> dict[str, Any]:
        """Writes the ids in their stored form, and int64 positions in the piece of documents."""
        ids_path = name_once(self.folder, f"{name}-ids")
        starts_path = name_once(self.folder, f"{name}-documents")
        n_tokens = n_starts = 0
        with create_file(ids_path) as ids_file, create_file(starts_path) as starts_file:
            for chunk in chunks:
                ids_file.write(pack_ids(chunk.ids, self.bytes_per_token).tobytes())
                starts = chunk.document_starts + n_tokens
                starts_file.write(starts.astype("<i8").tobytes())
                n_tokens += len(chunk.ids)
                n_starts += len(starts)
        return {
            "ids": ids_path,
            "starts": starts_path,
            "n_tokens": n_tokens,
            "n_starts": n_starts,
        }


@dataclass(frozen=True)
class AssemblyStage:
    """Assembles shards; the result of each describes the shard, and where it is.

    Args:
        folder: The folder in which the shards are written.
        bytes_per_token: The size of a stored id.
        tokens_per_record: The number of ids in a record.
    """

    folder: str
    bytes_per_token: int
    tokens_per_record: int
    name: str = "assembled"

    def setup(self) -> None:
        """Loads nothing."""

    def run(self, index: int, task: Task) -> Task:
        """Assembles a shard from ranges of the encoded pieces."""
        split, n_tokens = task["split"], task["n_tokens"]
        path = name_once(self.folder, f"{split}-shard-{index:05d}")
        packed = (block for part in task["parts"] for block in self._read(*part))
        with create_file(path) as opened:
            file = HashedFile(opened)
            for payload in cut_payloads(packed, self.tokens_per_record):
                file.write(pack_record(payload))
        shard = file.describe_shard(split, task["index"], task["n_shards"], n_tokens)
        return {"split": split, "path": path, "shard": vars(shard)}

    def _read(self, path: str, start: int, stop: int) -> Iterator[np.ndarray]:
        """Yields the stored ids from `start` to `stop` in a file, (n, bytes per token) uint8."""
        size = self.bytes_per_token
        left = (stop - start) * size
        with BeamStorage().open(path) as file:
            file.seek(start * size)
            rest = b""
            while left and (block := file.read(min(left, _BLOCK_BYTES))):
                left -= len(block)
                rest += block
                whole = len(rest) - len(rest) % size
                yield np.frombuffer(rest[:whole], np.uint8).reshape(-1, size)
                rest = rest[whole:]
        if left:
            raise EOFError(f"{path} ends too early")


def plan_shards(
    split: str, pieces: Sequence[Mapping[str, Any]], tokens_per_shard: int
) -> list[dict[str, Any]]:
    """Returns the tasks of `AssemblyStage` for a split.

    Args:
        split: The name of the split.
        pieces: The results of `EncodingStage`, in order.
        tokens_per_shard: The number of tokens in all shards but the last, whole records.
    """
    n_tokens = sum(piece["n_tokens"] for piece in pieces)
    n_shards = -(-n_tokens // tokens_per_shard)
    tasks: list[dict[str, Any]] = [
        {"split": split, "index": index, "n_shards": n_shards, "n_tokens": 0, "parts": []}
        for index in range(n_shards)
    ]
    position = 0
    for piece in pieces:
        low = 0
        while low < piece["n_tokens"]:
            task = tasks[position // tokens_per_shard]
            room = tokens_per_shard - position % tokens_per_shard
            high = min(piece["n_tokens"], low + room)
            task["parts"].append([piece["ids"], low, high])
            task["n_tokens"] += high - low
            position += high - low
            low = high
    return tasks


def write_documents(
    split: str, path: str, pieces: Sequence[Mapping[str, Any]]
) -> DocumentsFile | None:
    """Writes the document boundaries of a split.

    Args:
        split: The name of the split.
        path: The file to write.
        pieces: The results of `EncodingStage`, in order.

    Returns:
        The description of the file, with its final name; `None` if there are no boundaries.
    """
    packer = DocumentsPacker()
    with create_file(path) as opened, closing(HashedFile(opened)) as file:
        for starts in _iterate_starts(pieces):
            file.write(packer.pack(starts))
        file.write(packer.finish())
    return file.describe_documents(split, packer.count) if packer.count else None


def _iterate_starts(pieces: Sequence[Mapping[str, Any]]) -> Iterator[np.ndarray]:
    """Yields the positions in the split at which documents begin, (k,) int64, in order.

    A document that began at the end of a piece, but has no token there, begins with the next one.
    """
    n_tokens = sum(piece["n_tokens"] for piece in pieces)
    position, last = 0, -1
    for piece in pieces:
        if piece["n_starts"]:
            with BeamStorage().open(piece["starts"]) as file:
                while block := file.read(_BLOCK_BYTES):
                    starts = np.frombuffer(block, "<i8") + position
                    starts = starts[(starts > last) & (starts < n_tokens)]
                    last = int(starts[-1]) if starts.size else last
                    yield starts
        position += piece["n_tokens"]


def restore_shard(result: Mapping[str, Any]) -> Shard:
    """Returns the shard that a result of `AssemblyStage` describes."""
    return Shard(**result["shard"])
