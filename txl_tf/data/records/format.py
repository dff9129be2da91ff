"""The format of a data set folder: `records.json`, `vocab.txt` and shards of token ids.

A shard is a TFRecord file. The payload of a record consists of `tokens_per_record` consecutive
ids, raw and little-endian, in as many bytes as the vocabulary needs; only the last record of a
split is shorter. All other records have the same length, so the position of record k can be
computed. Records are independent of batch size and segment length:
`txl_tf.data.lanes.training_lanes` cuts the tokens into batches while reading.

The document boundaries of a split are in a separate file: zlib-compressed little-endian uint64,
the distances in tokens between the beginnings of consecutive documents, where the first distance
counts from the beginning of the split.

A shard's name ends with the beginning of its SHA-256. A new version of a data set therefore never
reuses the name of an older shard, and becomes current when `records.json` is replaced.
"""

import itertools
import json
import reprlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Self

import google_crc32c
import numpy as np

from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError, check_integer
from txl_tf.version import __version__

FORMAT_VERSION = 2
JSON_NAME = "records.json"
SYMBOLS_NAME = "vocab.txt"

# A TFRecord: length (8 bytes), its checksum (4), payload, the payload's checksum (4).
HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES


class RecordError(UserError):
    """A data set is missing, damaged, or not the requested one."""


@dataclass(frozen=True)
class Shard:
    """A file of token ids: name in the folder, number of tokens, size in bytes, SHA-256."""

    file: str
    tokens: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class DocumentsFile:
    """The file of a split's document boundaries: name, number of documents, size, SHA-256."""

    file: str
    count: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class RecordsInfo:
    """The content of `records.json`."""

    dataset: str
    vocabulary: Vocabulary
    cutoffs: tuple[int, ...]  # the first ids of the second and later bins
    tokens_per_record: int  # in every record except the last of a split
    splits: Mapping[str, tuple[Shard, ...]]
    documents: Mapping[str, DocumentsFile] = field(default_factory=dict)  # where known
    made_from: Mapping[str, Any] = field(default_factory=dict)  # arguments and files

    def __post_init__(self) -> None:
        bounds = (0, *self.cutoffs, len(self.vocabulary))
        if any(low >= high for low, high in itertools.pairwise(bounds)):
            raise UserError(
                "`cutoffs` must be ascending, above 0 and below the size of the vocabulary. "
                f"Received: cutoffs={self.cutoffs}, {len(self.vocabulary)} symbols"
            )
        check_integer("tokens_per_record", self.tokens_per_record, 1)

    @property
    def bytes_per_token(self) -> int:
        """The size of a stored id in bytes."""
        return count_id_bytes(len(self.vocabulary))

    @property
    def record_bytes(self) -> int:
        """The size of a full record with its frame, in bytes."""
        return self.tokens_per_record * self.bytes_per_token + FRAME_BYTES

    def iterate_files(self) -> Iterator[Shard | DocumentsFile]:
        """Yields the files of all splits."""
        for shards in self.splits.values():
            yield from shards
        yield from self.documents.values()

    def count_tokens(self, split: str) -> int:
        """Returns the number of tokens of a split."""
        return sum(shard.tokens for shard in self.splits[split])

    def to_json(self) -> dict[str, Any]:
        """Returns the content of `records.json`."""
        splits: dict[str, dict[str, Any]] = {
            name: {"tokens": self.count_tokens(name), "shards": [vars(shard) for shard in shards]}
            for name, shards in self.splits.items()
        }
        for name, documents in self.documents.items():
            splits[name]["documents"] = vars(documents)
        return {
            "format_version": FORMAT_VERSION,
            "created_by": f"txl_tf {__version__}",
            "dataset": self.dataset,
            "made_from": dict(self.made_from),
            "level": self.vocabulary.level,
            "cutoffs": list(self.cutoffs),
            "bytes_per_token": self.bytes_per_token,
            "tokens_per_record": self.tokens_per_record,
            "splits": splits,
            "vocabulary": self.vocabulary.to_json(),
        }

    @classmethod
    def loads(cls, text: str | bytes) -> Self:
        """Parses the text of `records.json`."""
        try:
            data = json.loads(text)
            if data["format_version"] != FORMAT_VERSION:
                raise RecordError(
                    f"the records have format version {data['format_version']}; this version of "
                    f"txl_tf reads format version {FORMAT_VERSION}. Make the records again."
                )
            info = cls(
                dataset=data["dataset"],
                vocabulary=Vocabulary.from_json(data["vocabulary"]),
                cutoffs=tuple(data["cutoffs"]),
                tokens_per_record=data["tokens_per_record"],
                splits={
                    name: tuple(Shard(**shard) for shard in split["shards"])
                    for name, split in data["splits"].items()
                },
                documents={
                    name: DocumentsFile(**split["documents"])
                    for name, split in data["splits"].items()
                    if "documents" in split
                },
                made_from=data["made_from"],
            )
            _check_json(info, data)
            return info
        except RecordError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            reason = f"no key {error}" if isinstance(error, KeyError) else error
            raise RecordError(f"this is not the JSON of a data set: {reason}") from error


def _check_json(info: RecordsInfo, data: Mapping[str, Any]) -> None:
    """Checks that the numbers and names are valid, and that `data` is consistent."""
    numbers: list[Any] = list(info.cutoffs)
    for file in info.iterate_files():
        if PurePath(file.file).name != file.file:
            raise ValueError(f"a file must be in the folder itself, received {file.file!r}")
        numbers += [n for key, n in vars(file).items() if key not in ("file", "sha256")]
    for number in numbers:
        if type(number) is not int or number < 0:
            raise ValueError(f"{number!r} is not a number of tokens or bytes")
    # The version may differ, and vocabularies check themselves.
    expected = {**info.to_json(), "created_by": data["created_by"]}
    expected["vocabulary"] = data["vocabulary"]
    for key in sorted({*data, *expected}):
        if data.get(key) != expected.get(key):
            raise ValueError(
                f"expected {key!r} to be {reprlib.repr(expected.get(key))}, "
                f"received {reprlib.repr(data.get(key))}"
            )


def count_id_bytes(n_symbols: int) -> int:
    """Returns the number of bytes that can store every id below `n_symbols`: 1, 2, 3 or 4.

    >>> count_id_bytes(256), count_id_bytes(257), count_id_bytes(267735)
    (1, 2, 3)
    """
    return max(1, -(-(n_symbols - 1).bit_length() // 8))


def pack_ids(ids: np.ndarray, n_bytes: int) -> np.ndarray:
    """Returns ids, (n,) integers, in their stored form, (n, n_bytes) uint8."""
    return ids.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :n_bytes]


def unpack_ids(payload: bytes, n_bytes: int) -> np.ndarray:
    """Returns the ids that `pack_ids` packed, (n,) int32."""
    packed = np.frombuffer(payload, np.uint8).reshape(-1, n_bytes)
    ids = np.zeros((len(packed), 4), np.uint8)
    ids[:, :n_bytes] = packed
    return ids.view("<i4")[:, 0]


def pack_record(payload: bytes) -> bytes:
    """Returns a payload in the frame of a TFRecord.

    In the 2019 code: records are examples of `_int64_feature` and `_float_feature`.
    """
    length = struct.pack("<Q", len(payload))
    return b"".join((length, _pack_crc(length), payload, _pack_crc(payload)))


def unpack_record(frame: bytes, n_bytes: int) -> bytes | None:
    """Returns the payload, `n_bytes` long, of a TFRecord; `None` if the record is damaged."""
    if len(frame) != n_bytes + FRAME_BYTES:
        return None
    payload = frame[HEADER_BYTES:-FOOTER_BYTES]
    return payload if frame == pack_record(payload) else None


def _pack_crc(data: bytes) -> bytes:
    """Returns the checksum of data, masked as in TFRecords because data may contain checksums."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)
