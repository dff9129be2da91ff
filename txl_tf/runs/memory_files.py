"""The memory of a run in its checkpoints: the states of each lane, in one file per process.

A file `PREFIX.memory-PART-of-PARTS` is a tensorflow checkpoint whose tensors are called
`layer_I/rows_START_STOP` after the lanes that they hold: lanes, not replicas, because a run may
resume with another number of replicas. I counts the tensors of the memory, of which a
Transformer-XL has one for each layer and an LSTM two. Two more tensors name the step and the run.
"""

import os
import re
import time
from collections.abc import Sequence

import tensorflow as tf

from txl_tf.data.files import list_names
from txl_tf.errors import UserError
from txl_tf.runs.checkpoint_reader import ORIGIN_GROUP, CheckpointReader, Origin
from txl_tf.runs.checkpoint_writer import make_origin, write_tensors

PATIENCE = 60.0  # seconds until a network file system shows the files of other hosts


class MemoryFileError(UserError):
    """Files of a memory are missing, belong to another checkpoint or do not hold every lane."""


def write_memory(
    prefix: str,
    memory: Sequence[tf.Tensor],
    origin: Origin,
    *,
    first_row: int,
    part: int = 0,
    n_parts: int = 1,
) -> None:
    """Writes the lanes of this process.

    Args:
        prefix: The path of the checkpoint.
        memory: The tensors of the memory, (rows, ...) each.
        origin: The step and the run.
        first_row: The first lane of this process.
        part: The index of this process.
        n_parts: The number of processes.
    """
    tensors = {
        f"layer_{index}/rows_{first_row}_{first_row + states.shape[0]}": states
        for index, states in enumerate(memory)
    }
    tensors |= {f"{ORIGIN_GROUP}/{name}": x for name, x in make_origin(origin).items()}
    write_tensors(f"{prefix}.memory-{part:05d}-of-{n_parts:05d}", tensors)


def check_parts(prefix: str, n_parts: int) -> None:
    """Waits until the files of all processes exist.

    Args:
        prefix: The path of the checkpoint.
        n_parts: The number of processes.

    Raises:
        MemoryFileError: If some are still missing after `PATIENCE` seconds.
    """
    end = time.monotonic() + PATIENCE
    while True:
        found = [match for match in _list_parts(prefix) if int(match[2]) == n_parts]
        if len(found) == n_parts:
            return
        if time.monotonic() > end:
            raise MemoryFileError(
                f"only {len(found)} of {n_parts} processes have written into this folder: all need "
                "the same `model_dir` on a shared file system"
            )
        time.sleep(1.0)


def read_memory(weights: CheckpointReader, n_tensors: int, rows: range) -> list[tf.Tensor]:
    """Reads some lanes, regardless of which processes wrote them.

    Args:
        weights: The reader of the checkpoint's weights.
        n_tensors: The number of tensors of the memory.
        rows: The consecutive lanes to read.

    Returns:
        The tensors, (rows, ...) each.

    Raises:
        MemoryFileError: If a file or a lane is missing, or the origin of a file differs from that
            of the weights.
        tf.errors.OpError: If a file is damaged.
    """
    prefix, expected = weights.path, weights.origin
    readers = [CheckpointReader(path) for path in _find_parts(prefix)]
    for reader in readers:
        if reader.origin != expected:
            raise MemoryFileError(
                f"its parts are of different checkpoints: {os.path.basename(reader.path)} names "
                f"{reader.origin}, the weights name {expected}"
            )
    memory = []
    for layer in range(n_tensors):
        pieces = []
        for reader in readers:
            for name in reader.keys:
                match = re.fullmatch(rf"layer_{layer}/rows_(\d+)_(\d+)", name)
                if match:
                    pieces.append((int(match[1]), int(match[2]), reader, name))
        memory.append(_join_rows(prefix, sorted(pieces, key=lambda piece: piece[0]), rows))
    return memory


def _join_rows(prefix: str, pieces: list, rows: range) -> tf.Tensor:
    """Joins the states of some lanes from pieces (first lane, end, reader, name)."""
    found, place = [], rows.start
    for start, stop, reader, name in pieces:
        if start <= place < min(stop, rows.stop):
            found.append(reader.get_tensor(name)[place - start : rows.stop - start])
            place = min(stop, rows.stop)
    if place < rows.stop:
        raise MemoryFileError(f"the memory of {prefix} lacks lane {place}")
    return tf.concat(found, axis=0)


def _list_parts(prefix: str) -> list[re.Match[str]]:
    """Returns a match for each file, whose groups are the part and the number of parts."""
    folder, name = os.path.split(prefix)
    pattern = re.compile(re.escape(name) + r"\.memory-(\d+)-of-(\d+)\.index")
    return [match for match in map(pattern.fullmatch, list_names(folder)) if match]


def _find_parts(prefix: str) -> list[str]:
    """Returns the paths of all parts, in order."""
    matches = _list_parts(prefix)
    n_parts = {int(match[2]) for match in matches}
    if len(n_parts) != 1 or n_parts != {len(matches)}:
        raise MemoryFileError(f"the memory of {prefix} is incomplete: {len(matches)} files")
    folder = os.path.dirname(prefix)
    return sorted(os.path.join(folder, match[0].removesuffix(".index")) for match in matches)
