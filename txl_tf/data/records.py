"""What a data set folder holds: `records.json`, `vocab.txt` and shards of token ids.

A shard is a TFRecord file. The payload of a record is a run of `tokens_per_record` ids, raw and
little-endian, in the smallest unsigned type that holds the vocabulary; only the last record of a
split is shorter. All others are equally long, so that record k is found by arithmetic. Records
know no batch size and no segment length: `txl_tf.data.lanes` cuts those while reading.

A shard's name ends in the start of its SHA-256. A new version of a data set thus never takes the
name of an older shard, and replacing `records.json` is the one moment at which it becomes current.
"""

import hashlib
import itertools
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, BinaryIO, Self

import google_crc32c
import numpy as np

from txl_tf.data.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.version import __version__

FORMAT_VERSION = 1
JSON_NAME = "records.json"
VOCABULARY_NAME = "vocab.txt"

# A TFRecord: length (8 bytes), its checksum (4), payload, the payload's checksum (4).
HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES

_KEYS = (
    "format_version",
    "created_by",
    "dataset",
    "level",
    "cutoffs",
    "dtype",
    "tokens_per_record",
    "splits",
    "vocabulary",
)


class RecordError(UserError):
    """A data set folder that is missing, damaged or not what was asked for."""


@dataclass(frozen=True)
class Shard:
    """One file of a split: its name in the folder, its tokens, its size and its SHA-256."""

    file: str
    tokens: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class RecordsInfo:
    """The content of `records.json`.

    Args:
        dataset: The name of the data set.
        vocabulary: Its symbols.
        cutoffs: Ids at which the adaptive softmax starts a new bin; may be empty.
        tokens_per_record: Ids in every record but the last of a split.
        splits: The shards of each split, in order.

    Raises:
        ValueError: If `cutoffs` do not rise within the vocabulary, or `tokens_per_record` is not
            positive.
    """

    dataset: str
    vocabulary: Vocabulary
    cutoffs: tuple[int, ...]
    tokens_per_record: int
    splits: Mapping[str, tuple[Shard, ...]]

    def __post_init__(self) -> None:
        bounds = (0, *self.cutoffs, len(self.vocabulary))
        if any(low >= high for low, high in itertools.pairwise(bounds)):
            raise ValueError(
                "`cutoffs` must rise between 0 and the size of a vocabulary that is not empty. "
                f"Received: cutoffs={self.cutoffs}, {len(self.vocabulary)} symbols"
            )
        if self.tokens_per_record < 1:
            raise ValueError(
                "`tokens_per_record` must be positive. "
                f"Received: tokens_per_record={self.tokens_per_record}"
            )

    @property
    def dtype(self) -> np.dtype:
        """The little-endian type of a stored id."""
        return choose_dtype(len(self.vocabulary))

    @property
    def record_bytes(self) -> int:
        """The bytes of a full record with its frame."""
        return self.tokens_per_record * self.dtype.itemsize + FRAME_BYTES

    def count_tokens(self, split: str) -> int:
        """Returns the number of tokens of a split."""
        return sum(shard.tokens for shard in self.splits[split])

    def dumps(self) -> str:
        """Returns the text of `records.json`."""
        splits = {
            name: {"tokens": self.count_tokens(name), "shards": [vars(shard) for shard in shards]}
            for name, shards in self.splits.items()
        }
        data = {
            "format_version": FORMAT_VERSION,
            "created_by": f"txl_tf {__version__}",
            "dataset": self.dataset,
            "level": self.vocabulary.level,
            "cutoffs": list(self.cutoffs),
            "dtype": self.dtype.name,
            "tokens_per_record": self.tokens_per_record,
            "splits": splits,
            "vocabulary": self.vocabulary.to_json(),
        }
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def loads(cls, text: str | bytes) -> Self:
        """Reads the text of `records.json`.

        Args:
            text: What `dumps` returned.

        Returns:
            The content.

        Raises:
            RecordError: If the format version is another, or the text is not what `dumps` writes.
        """
        try:
            data = json.loads(text)
            if data["format_version"] != FORMAT_VERSION:
                raise RecordError(
                    f"the records have format version {data['format_version']}; this version of "
                    f"txl_tf reads format version {FORMAT_VERSION}. Make the records again."
                )
            return cls._from_json(data)
        except RecordError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            reason = f"no key {error}" if isinstance(error, KeyError) else error
            raise RecordError(f"this is not the JSON of a data set: {reason}") from error

    @classmethod
    def _from_json(cls, data: Mapping[str, Any]) -> Self:
        if set(data) != set(_KEYS):
            raise ValueError(f"expected the keys {sorted(_KEYS)}, received {sorted(data)}")
        splits = {
            name: tuple(Shard(**shard) for shard in split["shards"])
            for name, split in data["splits"].items()
        }
        info = cls(
            dataset=data["dataset"],
            vocabulary=Vocabulary.from_json(data["vocabulary"]),
            cutoffs=tuple(data["cutoffs"]),
            tokens_per_record=data["tokens_per_record"],
            splits=splits,
        )
        for shard in itertools.chain(*splits.values()):
            if PurePath(shard.file).name != shard.file:
                raise ValueError(f"a shard must lie in the folder, received {shard.file!r}")
        if data["dtype"] != info.dtype.name:
            raise ValueError(
                f"{len(info.vocabulary)} symbols are stored as {info.dtype.name}, "
                f"received {data['dtype']}"
            )
        for name, split in data["splits"].items():
            if split["tokens"] != info.count_tokens(name):
                raise ValueError(f"the shards of {name!r} do not hold its {split['tokens']} tokens")
        return info


def choose_dtype(n_symbols: int) -> np.dtype:
    """Returns the smallest little-endian unsigned type that holds the ids of `n_symbols`.

    >>> choose_dtype(256).name, choose_dtype(257).name
    ('uint8', 'uint16')
    """
    return np.min_scalar_type(max(n_symbols - 1, 0)).newbyteorder("<")


def hash_file(file: BinaryIO) -> str:
    """Returns the SHA-256 of an open file in hexadecimal, reading 16 MiB at a time."""
    digest = hashlib.sha256()
    while block := file.read(2**24):
        digest.update(block)
    return digest.hexdigest()


def unpack_record(frame: bytes, n_bytes: int) -> bytes | None:
    """Takes the payload out of a TFRecord.

    Args:
        frame: The record with its frame.
        n_bytes: The bytes that the payload must have.

    Returns:
        The payload, or `None` if its length or a checksum is wrong.
    """
    if len(frame) != n_bytes + FRAME_BYTES:
        return None
    length, length_crc = struct.unpack_from("<QI", frame)
    payload = frame[HEADER_BYTES:-FOOTER_BYTES]
    (payload_crc,) = struct.unpack_from("<I", frame, len(frame) - FOOTER_BYTES)
    is_whole = (
        length == n_bytes
        and length_crc == _mask_crc(google_crc32c.value(frame[:8]))
        and payload_crc == _mask_crc(google_crc32c.value(payload))
    )
    return payload if is_whole else None


def _mask_crc(crc: int) -> int:
    """Masks a checksum as TFRecords do, so that one of checksummed data stays meaningful."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
