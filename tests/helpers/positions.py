"""A split of which every token is its own position."""

import numpy as np


class Positions:
    """A split in which every token is its own position."""

    def __init__(self, n_tokens, document_starts=()):
        self._n_tokens = n_tokens
        self.document_starts = np.array(document_starts, np.int64)

    def __len__(self):
        return self._n_tokens

    def read(self, start, stop):
        assert 0 <= start <= stop <= self._n_tokens
        return np.arange(start, stop, dtype=np.int32)


# The last one is behind the last input: no lane reads it.
STARTS = (0, 2, 3, 29, 30, 31, 97, 98, 139, 210, 227, 228)
