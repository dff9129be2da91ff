"""Reads a TFRecord file of the 2019 release at any position.

Letters: B lanes, T tokens of a segment, L tokens of a lane.

A record is a `tf.train.Example` with `inputs` and `labels`, T ids each; the other features of the
TPU form are redundant. Record b of batch k is segment k of lane b, and record k * B + b of the
file. The segments of the last batch may be shorter; the TPU form then lacks this batch.
"""

import mmap
import os
import struct
from array import array
from typing import BinaryIO

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from txl_tf.data.files import open_file
from txl_tf.data.records import FRAME_BYTES, RecordError, unpack_record


class RecordFile:
    """The concatenated lanes of a file: B lanes of L tokens, including the last label.

    Only the offsets of the records are kept in memory.

    Args:
        path: The path of the file.
        n_lanes: The number of lanes B.
        tgt_len: The segment length T.
        n_token: The vocabulary size V; all ids are below it.
        is_tpu: Whether the file has the TPU form, in which all records have T tokens.

    Raises:
        RecordError: If the file is missing or truncated, its records are not a whole number of
            batches, or its first records are invalid.
    """

    def __init__(
        self, path: str, *, n_lanes: int, tgt_len: int, n_token: int, is_tpu: bool
    ) -> None:
        self.path = path
        self._n_lanes = n_lanes
        self._tgt_len = tgt_len
        self._n_token = n_token
        self._offsets = index_records(path)
        self.n_batches, rest = divmod(len(self._offsets) - 1, n_lanes)
        if rest:
            raise RecordError(
                f"`{path}` holds {len(self._offsets) - 1} records, which is not a whole number of "
                f"batches of {n_lanes}."
            )
        if self.n_batches > 1 and tgt_len > os.path.getsize(path):  # an id takes at least a byte
            raise RecordError(f"`{path}` is too small for records of {tgt_len} tokens.")
        self._last_len = tgt_len
        if self.n_batches and not is_tpu:
            self._last_len = self._read_last_len()
        self.lane_len = max(self.n_batches - 1, 0) * tgt_len + self._last_len + 1
        if self.n_batches:  # checks that lane 0 continues after B records: a wrong B mixes lanes
            self.read(0, min(tgt_len + 2, self.lane_len))

    def __len__(self) -> int:
        return self.n_batches and self._n_lanes * self.lane_len

    def read(self, start: int, stop: int) -> np.ndarray:
        """Reads the tokens from `start` up to but excluding `stop`, (stop - start,) int32.

        Raises:
            RecordError: If a record is damaged, holds an unknown id, has labels that are not its
                inputs shifted by one, or does not continue the previous record of its lane.
        """
        ids = np.empty(stop - start, np.int32)
        with open_file(self.path) as file:
            done = 0
            while done < len(ids):
                lane, first = divmod(start + done, self.lane_len)
                count = min(len(ids) - done, self.lane_len - first)
                self._read_lane(file, lane, first, ids[done : done + count])
                done += count
        return ids

    def _read_lane(self, file: BinaryIO, lane: int, start: int, out: np.ndarray) -> None:
        """Reads the tokens of a lane from `start` into `out`, (n,) int32."""
        stop = start + len(out)
        # A lane's last token is the last label of its last record.
        first, last = (
            min(position // self._tgt_len, self.n_batches - 1) for position in (start, stop - 1)
        )
        before: int | None = None
        for batch in range(first, last + 1):
            record = batch * self._n_lanes + lane
            is_last = batch == self.n_batches - 1
            tokens = self._read_record(file, record, self._last_len if is_last else self._tgt_len)
            if before is not None and before != tokens[0]:
                raise RecordError(
                    f"`{self.path}`, record {record}: does not continue record "
                    f"{record - self._n_lanes}, which is {self._n_lanes} before it."
                )
            before = int(tokens[-1])
            begin = batch * self._tgt_len
            low, high = max(start, begin), min(stop, begin + len(tokens))
            out[low - start : high - start] = tokens[low - begin : high - begin]

    def _read_record(self, file: BinaryIO, record: int, n_inputs: int) -> np.ndarray:
        """Returns the checked inputs and the last label of a record, (n_inputs + 1,) int32."""
        # Lists are faster than arrays for a few hundred ids.
        inputs, labels = self._read_example(file, record)
        tokens = inputs + labels[-1:]
        if len(inputs) != n_inputs:
            fault = f"expected {n_inputs} inputs, found {len(inputs)}"
        elif labels != tokens[1:]:
            fault = "its labels are not its inputs shifted by one"
        elif min(tokens) < 0:
            fault = f"holds the id {min(tokens)}"
        elif max(tokens) >= self._n_token:
            fault = f"holds the id {max(tokens)}, but the vocabulary has {self._n_token} symbols"
        else:
            return np.array(tokens, np.int32)
        raise RecordError(f"`{self.path}`, record {record}: {fault}.")

    def _read_example(self, file: BinaryIO, record: int) -> tuple[list[int], list[int]]:
        """Returns the inputs and the labels of a record."""
        begin, end = self._offsets[record : record + 2].tolist()
        file.seek(begin)
        payload = unpack_record(file.read(end - begin), end - begin - FRAME_BYTES)
        where = f"`{self.path}`, record {record}"
        if payload is None:
            raise RecordError(f"{where}: corrupt, its checksum or length is wrong.")
        try:
            features = tf.train.Example.FromString(payload).features.feature
        except DecodeError as error:
            raise RecordError(f"{where}: corrupt, it is not a `tf.train.Example`.") from error
        return features["inputs"].int64_list.value[:], features["labels"].int64_list.value[:]

    def _read_last_len(self) -> int:
        """Returns the number of inputs of a record of the last batch, 1 to T."""
        record = (self.n_batches - 1) * self._n_lanes
        with open_file(self.path) as file:
            found = len(self._read_example(file, record)[0])
        if not 1 <= found <= self._tgt_len:
            raise RecordError(
                f"`{self.path}`, record {record}: expected 1 to {self._tgt_len} inputs, "
                f"found {found}."
            )
        return found


def index_records(path: str) -> np.ndarray:
    """Returns the offsets of the n records of a TFRecord file and of its end, (n + 1,) int64.

    Raises:
        RecordError: If the file is missing, or ends within a record.
    """
    if not os.path.isfile(path):
        raise RecordError(f"`{path}` is missing.")
    size, end = os.path.getsize(path), 0
    offsets = array("q", [0])
    if size:
        read_length = struct.Struct("<Q").unpack_from
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            while end + FRAME_BYTES <= size:
                end += read_length(content, end)[0] + FRAME_BYTES
                if end > size:
                    break
                offsets.append(end)
    if offsets[-1] != size:
        raise RecordError(f"`{path}`, record {len(offsets) - 1}: truncated or corrupt.")
    return np.frombuffer(offsets, np.int64)
