"""The memory of a run in its checkpoints: the states of each lane, in files of each process.

A file `PREFIX.memory-PART-of-PARTS` is a checkpoint of tensorflow's own format, whose tensors are
called `layer_I/rows_START_STOP` after the lanes that they hold. Lanes, not replicas: a run may go
on with another number of those. Two more tensors tell the step and the run.
"""

import os
import re
import time
from collections.abc import Sequence

import tensorflow as tf

from txl_tf.errors import UserError
from txl_tf.runs.checkpoint_reader import ORIGIN_GROUP, CheckpointReader, Origin
from txl_tf.runs.checkpoint_writer import make_origin, write_tensors
from txl_tf.runs.files import list_names

PATIENCE = 60.0  # seconds within which a network's file system shows the files of other hosts


class MemoryFileError(UserError):
    """Files of a memory that are missing, of another checkpoint, or do not hold every lane."""


def write_memory(
    prefix: str,
    memory: Sequence[tf.Tensor],
    origin: Origin,
    *,
    first_row: int,
    part: int = 0,
    n_parts: int = 1,
) -> None:
    """Writes the lanes that this process holds.

    Args:
        prefix: path of the checkpoint.
        memory: for each layer (rows, M, D).
        origin: step and run.
        first_row: the first of these lanes.
        part: the process.
        n_parts: how many processes there are.
    """
    tensors = {
        f"layer_{index}/rows_{first_row}_{first_row + states.shape[0]}": states
        for index, states in enumerate(memory)
    }
    tensors |= {f"{ORIGIN_GROUP}/{name}": x for name, x in make_origin(origin).items()}
    write_tensors(f"{prefix}.memory-{part:05d}-of-{n_parts:05d}", tensors)


def check_parts(prefix: str, n_parts: int) -> None:
    """Checks that the files of all processes are there.

    Args:
        prefix: path of the checkpoint.
        n_parts: how many processes there are.

    Raises:
        MemoryFileError: some are not.
    """
    end = time.monotonic() + PATIENCE
    while True:
        found = [match for match in _list_parts(prefix) if int(match[2]) == n_parts]
        if len(found) == n_parts:
            return
        if time.monotonic() > end:
            raise MemoryFileError(
                f"only {len(found)} of {n_parts} processes have written into this folder: all need "
                "the same `model_dir`, one that they share"
            )
        time.sleep(1.0)


def read_memory(weights: CheckpointReader, n_layer: int, rows: range) -> list[tf.Tensor]:
    """Reads some lanes, whichever processes wrote them.

    Args:
        weights: of the checkpoint.
        n_layer: how many layers the model has.
        rows: the lanes, one after the other.

    Returns:
        For each layer (rows, M, D).

    Raises:
        MemoryFileError: a file is missing or says of itself what the weights do not, or a lane is
            in none.
        tf.errors.OpError: a file is damaged.
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
    for layer in range(n_layer):
        pieces = []
        for reader in readers:
            for name in reader.keys:
                match = re.fullmatch(rf"layer_{layer}/rows_(\d+)_(\d+)", name)
                if match:
                    pieces.append((int(match[1]), int(match[2]), reader, name))
        memory.append(_join_rows(prefix, sorted(pieces, key=lambda piece: piece[0]), rows))
    return memory


def _join_rows(prefix: str, pieces: list, rows: range) -> tf.Tensor:
    """Returns the states of some lanes out of pieces (first lane, end, reader, name)."""
    found, place = [], rows.start
    for start, stop, reader, name in pieces:
        if start <= place < min(stop, rows.stop):
            found.append(reader.get_tensor(name)[place - start : rows.stop - start])
            place = min(stop, rows.stop)
    if place < rows.stop:
        raise MemoryFileError(f"the memory of {prefix} lacks lane {place}")
    return tf.concat(found, axis=0)


def _list_parts(prefix: str) -> list[re.Match[str]]:
    """Returns the names of the files that are there, with part and number of parts as groups."""
    folder, name = os.path.split(prefix)
    pattern = re.compile(re.escape(name) + r"\.memory-(\d+)-of-(\d+)\.index")
    return [match for match in map(pattern.fullmatch, list_names(folder)) if match]


def _find_parts(prefix: str) -> list[str]:
    """Returns the paths of all parts, in order."""
    matches = _list_parts(prefix)
    n_parts = {int(match[2]) for match in matches}
    if len(n_parts) != 1 or n_parts != {len(matches)}:
        raise MemoryFileError(f"the memory of {prefix} is not whole: {len(matches)} files")
    folder = os.path.dirname(prefix)
    return sorted(os.path.join(folder, match[0].removesuffix(".index")) for match in matches)
