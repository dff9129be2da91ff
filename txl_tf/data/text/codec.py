"""The interface that encodes texts as ids and decodes ids, the same at every level."""

from collections import Counter
from typing import Any, NamedTuple, Protocol

import numpy as np

# A tf.Tensor or a tf.RaggedTensor. TensorFlow is imported only by the functions that need it.
Tensor = Any

NO_OFFSETS = np.zeros(0, np.int64)


class Encoded(NamedTuple):
    """An encoded text.

    Attributes:
        ids: The ids, (n,) int32; -1 for an unknown symbol if the vocabulary has no id for unknown
            symbols.
        positions: The number of ids before each of the given offsets, (k,) int64.
        unknown: The number of occurrences of each unknown symbol.
    """

    ids: np.ndarray
    positions: np.ndarray
    unknown: Counter[str]


class Codec(Protocol):
    """Encodes and decodes at one level; `Vocabulary` chooses the codec."""

    def encode(
        self, text: bytes, offsets: np.ndarray = NO_OFFSETS, *, begins_line: bool = True
    ) -> Encoded:
        """Encodes a text.

        Args:
            text: The text; UTF-8 unless the level is "byte".
            offsets: Ascending byte offsets in `text`, (k,) int64. Each is the beginning of a
                character; at levels "word" and "subword", of a line.
            begins_line: Whether the text starts at the beginning of a line.

        Returns:
            The ids, the positions of the offsets and the unknown symbols.

        Raises:
            UnicodeDecodeError: If the text must be UTF-8 and is not.
        """

    def decode(self, ids: np.ndarray) -> bytes:
        """Decodes ids, (n,) integers that are known to be in range."""

    def make_resource(self) -> Any:
        """Returns the lookup resource of `tokenize`, which TensorFlow can save."""

    def tokenize(self, texts: Tensor, resource: Any) -> Tensor:
        """Encodes texts, eagerly or in a graph.

        Args:
            texts: (n,) string; UTF-8 unless the level is "byte".
            resource: The result of `make_resource`.

        Returns:
            The ids, ragged (n, ids) int32; -1 as in `Encoded`.
        """
