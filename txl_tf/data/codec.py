"""What turns a text into ids, and ids into a text, at any level."""

from collections import Counter
from typing import Any, NamedTuple, Protocol

import numpy as np

# A tf.Tensor or a tf.RaggedTensor; tensorflow is imported only when a function needs it.
Tensor = Any

NO_OFFSETS = np.zeros(0, np.int64)


class Encoded(NamedTuple):
    """The ids of a piece of text.

    Attributes:
        ids: The ids, (n,) int32; -1 for a symbol that is not known, if the vocabulary has no
            symbol for those.
        positions: The number of ids before each of the offsets that were asked for, (k,) int64.
        unknown: How often each symbol occurred that is not known.
    """

    ids: np.ndarray
    positions: np.ndarray
    unknown: Counter[str]


class Codec(Protocol):
    """Encodes and decodes at one level; `Vocabulary` chooses it."""

    def encode(
        self, text: bytes, offsets: np.ndarray = NO_OFFSETS, *, begins_line: bool = True
    ) -> Encoded:
        """Turns a text into ids.

        Args:
            text: The text; UTF-8 unless the level is "byte".
            offsets: Byte offsets in `text`, (k,) int64, rising: where characters begin, and at
                levels "word" and "subword" lines.
            begins_line: Whether the text begins a line, or goes on with one.

        Returns:
            The ids, the positions of the offsets, and what is not known.

        Raises:
            UnicodeDecodeError: If the text is not UTF-8 where it must be.
        """
        ...

    def decode(self, ids: np.ndarray) -> bytes:
        """Turns ids, (n,) integers that were checked, into a text."""
        ...

    def make_resource(self) -> Any:
        """Returns what `tokenize` looks things up in, for tensorflow to save."""
        ...

    def tokenize(self, texts: Tensor, resource: Any) -> Tensor:
        """Turns texts into ids, in a graph too.

        Args:
            texts: (n,) string; UTF-8 unless the level is "byte".
            resource: From `make_resource`.

        Returns:
            The ids, ragged (n, ids) int32; -1 as in `Encoded`.
        """
        ...
