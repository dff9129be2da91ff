"""Tokens in memory, with the interface of a split."""

from collections.abc import Sequence

import numpy as np

from txl_tf.data.lanes.training_lanes import Tokens


class StoredTokens:
    """Tokens in memory, (n,) int32, with the interface of a split."""

    def __init__(self, ids: np.ndarray, document_starts: Sequence[int] | np.ndarray = ()):
        self._ids = ids
        self.document_starts = np.asarray(document_starts, np.int64)

    def __len__(self) -> int:
        return len(self._ids)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Returns the ids from `start` up to `stop`, (stop - start,) int32."""
        return self._ids[start:stop]


def store_tokens(split: Tokens, start: int, stop: int) -> StoredTokens:
    """Returns the tokens of a split from `start` up to `stop`, or its end."""
    stop = min(stop, len(split))
    starts = split.document_starts
    within = starts[(start <= starts) & (starts < stop)]
    return StoredTokens(split.read(start, stop), within - start)
