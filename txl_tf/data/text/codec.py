"""The interface for encoding texts as ids and decoding ids, which is the same at every level."""

from collections import Counter
from typing import Any, NamedTuple, Protocol

import numpy as np

# A tf.Tensor or a tf.RaggedTensor. TensorFlow is imported only by the functions that need it.
Tensor = Any

NO_OFFSETS = np.zeros(0, np.int64)


class Encoded(NamedTuple):
    """An encoded text."""

    ids: np.ndarray  # (n,) int32; -1 for unknown symbols without an id
    positions: np.ndarray  # (k,) int64, the number of ids before each of the given offsets
    unknown: Counter[str]  # the number of occurrences of each unknown symbol


class Codec(Protocol):
    """Encodes and decodes at one level; `Vocabulary` chooses the codec."""

    def encode(
        self, text: bytes, offsets: np.ndarray = NO_OFFSETS, *, begins_line: bool = True
    ) -> Encoded:
        """Encodes a text, which is UTF-8 unless the level is "byte".

        `offsets`, (k,) int64, are ascending byte offsets at which characters begin or, at levels
        "word" and "subword", lines. `begins_line` is whether the text begins a line.
        """

    def decode(self, ids: np.ndarray) -> bytes:
        """Decodes ids, (n,) integers, which must be in range."""

    def make_resource(self) -> Any:
        """Returns the lookup resource of `tokenize`, which TensorFlow can save."""

    def tokenize(self, texts: Tensor, resource: Any) -> Tensor:
        """Encodes texts, (n,) string, as ragged (n, ids) int32, eagerly or in a graph."""
