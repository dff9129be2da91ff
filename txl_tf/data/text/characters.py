"""Levels "byte" and "char": a symbol is a code (a byte or a code point) with an id in a table."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from txl_tf.data.text.codec import NO_OFFSETS, Encoded, Tensor

# In UTF-8, the two highest bits of a continuation byte are 10.
_HIGH_BITS, _CONTINUATION = 0xC0, 0x80


class CharacterCodec:
    """Encodes bytes, or the characters of UTF-8, by a table of their codes.

    `encode` uses NumPy, so that preparing bytes and characters does not need TensorFlow, whose
    import takes time and memory. `tokenize` gives the same ids inside a graph.
    """

    def __init__(self, codes: Sequence[int], *, is_bytes: bool, unknown_id: int = -1) -> None:
        self.codes = np.array(codes, np.uint32)  # (V,)
        self._is_bytes = is_bytes
        self._unknown_id = unknown_id  # -1 for none
        # The last entry, -1, is for all codes above the highest known one.
        self._id_of_code = np.full(int(self.codes.max(initial=0)) + 2, -1, np.int32)
        self._id_of_code[self.codes] = np.arange(len(self.codes), dtype=np.int32)

    def encode(
        self, text: bytes, offsets: np.ndarray = NO_OFFSETS, *, begins_line: bool = True
    ) -> Encoded:
        """See `Codec.encode`."""
        codes = read_codes(text, is_bytes=self._is_bytes)
        ids = self._id_of_code.take(codes, mode="clip")
        unknown: Counter[str] = Counter()
        if ids.size and ids.min() < 0:
            missing, counts = np.unique(codes[ids < 0], return_counts=True)
            for code, count in zip(missing.tolist(), counts.tolist(), strict=True):
                unknown[str(code) if self._is_bytes else chr(code)] = count
            ids = np.where(ids < 0, np.int32(self._unknown_id), ids)
        return Encoded(ids, self._locate(text, offsets), unknown)

    def decode(self, ids: np.ndarray) -> bytes:
        """See `Codec.decode`."""
        codes = self.codes[ids]
        if self._is_bytes:
            return codes.astype(np.uint8).tobytes()
        text = codes.astype("<u4").tobytes().decode("utf-32-le", errors="surrogatepass")
        return text.encode("utf-8", errors="surrogatepass")

    def make_resource(self) -> Any:
        """See `Codec.make_resource`: the id of each code."""
        import tensorflow as tf

        ids = np.where(self._id_of_code < 0, np.int32(self._unknown_id), self._id_of_code)
        return tf.Variable(ids, trainable=False, name="id_of_code")

    def tokenize(self, texts: Tensor, resource: Any) -> Tensor:
        """See `Codec.tokenize`. A SavedModel with these operations needs only TensorFlow."""
        import tensorflow as tf

        if self._is_bytes:
            together = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)
            lengths = tf.cast(tf.strings.length(texts), tf.int64)
            codes = tf.RaggedTensor.from_row_lengths(tf.cast(together, tf.int32), lengths)
        else:
            codes = tf.strings.unicode_decode(texts, "UTF-8")
        indices = tf.minimum(codes.flat_values, tf.shape(resource)[0] - 1)
        return codes.with_flat_values(tf.gather(resource, indices))

    def _locate(self, text: bytes, offsets: np.ndarray) -> np.ndarray:
        """Returns the number of symbols before each offset."""
        if self._is_bytes or not offsets.size or text.isascii():
            return offsets
        begins = (np.frombuffer(text, np.uint8) & _HIGH_BITS) != _CONTINUATION
        before = np.concatenate([[0], np.cumsum(begins)])
        return before[offsets]


def read_codes(text: bytes, *, is_bytes: bool) -> np.ndarray:
    """Returns the bytes of a text, (n,) uint8, or the code points of its UTF-8, (n,) uint32."""
    if is_bytes or text.isascii():
        return np.frombuffer(text, np.uint8)
    characters = text.decode("utf-8", errors="surrogatepass")
    return np.frombuffer(characters.encode("utf-32-le", errors="surrogatepass"), "<u4")
