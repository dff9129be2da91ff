"""Splits that lie in several pieces, such as shards or files, read as one stream of ids."""

import bisect
from collections.abc import Callable, Sequence

import numpy as np

# Reads the tokens from one position up to another, within the piece of an index, into an array.
ReadPiece = Callable[[int, int, int, np.ndarray], None]


def read_pieces(
    ends: Sequence[int], start: int, stop: int, *, split: str, read_piece: ReadPiece
) -> np.ndarray:
    """Reads the tokens from `start` up to, not including, `stop`, each piece of them once.

    Args:
        ends: Position in the split at which each piece ends, not falling; none if it is empty.
        start: Position of the first token.
        stop: Position behind the last token.
        split: Name of the split.
        read_piece: Called with the index of a piece, the positions within it, and the array that
            their ids go to, (n,) int32.

    Returns:
        The ids, (stop - start,) int32.

    Raises:
        ValueError: If the positions are not in order within the split.
    """
    length = ends[-1] if ends else 0
    if not 0 <= start <= stop <= length:
        raise ValueError(
            f"`start` and `stop` must be in order within the {length} tokens of "
            f"{split!r}. Received: start={start}, stop={stop}"
        )
    ids = np.empty(stop - start, np.int32)
    low = start
    while low < stop:
        index = bisect.bisect(ends, low)
        begin, high = ends[index - 1] if index else 0, min(stop, ends[index])
        read_piece(index, low - begin, high - begin, ids[low - start : high - start])
        low = high
    return ids
