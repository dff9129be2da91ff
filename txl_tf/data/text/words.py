"""Level "word": tensorflow-text splits a text on white space; a table maps each word to its id.

Preparation and SavedModels use the same functions of tensors. TensorFlow is imported when a text
is first encoded; decoding does not need it.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from txl_tf.data.text.codec import NO_OFFSETS, Encoded, Tensor

# The characters with the Unicode property White_Space, on which tensorflow-text splits. Wide ones
# have more than one byte in UTF-8.
_WIDE_SPACES = "\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
WHITE_SPACE = re.compile(f"[\t-\r {_WIDE_SPACES}]")
_NEWLINE = 10
_TRACED_BYTES = 2**16  # longer texts are encoded in a graph


def split_words(lines: Tensor, *, lower_case: bool = False) -> Tensor:
    """Splits lines, (n,) string in UTF-8, into words, ragged (n, words) string.

    In the 2019 code: `tokenize`.
    """
    import tensorflow as tf
    import tensorflow_text as tf_text

    if lower_case:
        lines = convert_to_lower_case(lines)
    # tensorflow-text assumes that white space has one byte, and would add the other bytes to the
    # previous word.
    is_ascii = tf.reduce_all(tf.strings.length(lines) == tf.strings.length(lines, "UTF8_CHAR"))
    lines = tf.cond(
        is_ascii,
        lambda: tf.identity(lines),
        lambda: tf.strings.regex_replace(lines, f"[{_WIDE_SPACES}]", " "),
    )
    return tf_text.WhitespaceTokenizer().tokenize(lines)


def convert_to_lower_case(texts: Tensor) -> Tensor:
    """Converts texts, (n,) string in UTF-8, to lower case."""
    import tensorflow as tf

    # tf.strings.lower stops at a NUL.
    pieces = tf.strings.split(texts, "\0")
    lower = tf.strings.lower(pieces.flat_values, encoding="utf-8")
    joined = tf.strings.reduce_join(
        pieces.with_flat_values(tf.strings.join([lower, "\0"])), axis=-1
    )
    lengths = tf.strings.length(joined) - 1
    return tf.strings.substr(joined, tf.zeros_like(lengths), lengths)


@dataclass(eq=False)
class WordCodec:
    """Encodes words, with markers where lines begin and end.

    A line ends at a line feed. The text after the last line feed is an unfinished line: it gets no
    end marker and, if it is empty, no start marker.
    """

    symbols: Sequence[str]
    lower_case: bool
    unknown_id: int  # -1 for none
    line_start: str | None
    line_end: str | None

    def encode(
        self, text: bytes, offsets: np.ndarray = NO_OFFSETS, *, begins_line: bool = True
    ) -> Encoded:
        """See `Codec.encode`."""
        # Tracing the graph takes a quarter of a second. While Python waits for the whole graph,
        # other threads can run.
        is_long = len(text) > _TRACED_BYTES
        encode = self._encode_in_graph if is_long else self._encode_eagerly
        ids, row_splits, others = (result.numpy() for result in encode(text, begins_line))
        unknown = Counter(word.decode("utf-8") for word in others.tolist())
        if unknown and self.unknown_id >= 0:
            ids = np.where(ids < 0, np.int32(self.unknown_id), ids)
        return Encoded(ids, locate_lines(text, offsets, row_splits), unknown)

    def make_resource(self) -> Any:
        """See `Codec.make_resource`: the table of words; -1 for other words."""
        import tensorflow as tf

        keys = list(self.symbols) or [" "]  # a table needs a key; no word is a space
        pairs = tf.lookup.KeyValueTensorInitializer(
            tf.constant(keys, tf.string), tf.range(len(keys), dtype=tf.int32)
        )
        return tf.lookup.StaticHashTable(pairs, -1)

    def tokenize(self, texts: Tensor, resource: Any) -> Tensor:
        """See `Codec.tokenize`."""
        import tensorflow as tf

        lines, words = self._split(texts, begins_line=True)
        found = resource.lookup(words.flat_values)
        known = tf.where(found < 0, self.unknown_id, found)
        return lines.with_values(words.with_flat_values(known)).merge_dims(1, 2)

    def decode(self, ids: np.ndarray) -> bytes:
        """See `Codec.decode`: a space between words, a line break between marked lines."""
        parts: list[str] = []
        markers = {self.line_start, self.line_end} - {None}
        was_word = False
        for word in (self.symbols[i] for i in ids):
            if word not in markers:
                parts += [" ", word] if was_word else [word]
                was_word = True
                continue
            # One symbol may be both markers: after a word it ends a line, else it begins one. If
            # lines have no end marker, the start marker of the next line ends them.
            if was_word or word != self.line_start:
                parts.append("\n")
            was_word = False
        return "".join(parts).encode("utf-8", errors="surrogatepass")

    @cached_property
    def _table(self) -> Any:
        return self.make_resource()

    def _encode_eagerly(self, text: Tensor, begins_line: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the ids, the number of ids before each line, and the unknown words."""
        import tensorflow as tf

        with tf.init_scope():  # a table created in a graph would be filled at every call
            table = self._table
        _, words = self._split(tf.reshape(text, [1]), begins_line)
        found = table.lookup(words.flat_values)
        return found, words.row_splits, tf.boolean_mask(words.flat_values, found < 0)

    @cached_property
    def _encode_in_graph(self) -> Any:
        import tensorflow as tf

        signature = [tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.bool)]
        return tf.function(self._encode_eagerly, input_signature=signature, autograph=False)

    def _split(self, texts: Tensor, begins_line: Tensor | bool) -> tuple[Tensor, Tensor]:
        """Returns the lines, ragged (n, lines), and their words and markers, ragged (lines, words).

        `begins_line` is whether each text begins a line.
        """
        import tensorflow as tf

        lines = tf.strings.split(texts, "\n")
        marked = lines.flat_values
        if self.lower_case:
            marked = convert_to_lower_case(marked)
        # A text has at least one line, which may be empty; its last line is not finished.
        first, last = lines.row_splits[:-1], lines.row_splits[1:] - 1
        is_finished = tf.tensor_scatter_nd_update(
            tf.ones_like(marked, tf.bool), last[:, None], tf.zeros_like(last, tf.bool)
        )
        if self.line_start is not None:
            begins = tf.logical_or(is_finished, marked != "")
            begins = tf.tensor_scatter_nd_update(
                begins, first[:, None], tf.logical_and(tf.gather(begins, first), begins_line)
            )
            marked = tf.strings.join([tf.where(begins, f"{self.line_start} ", ""), marked])
        if self.line_end is not None:
            marked = tf.strings.join([marked, tf.where(is_finished, f" {self.line_end}", "")])
        return lines, split_words(marked)


def locate_lines(text: bytes, offsets: np.ndarray, row_splits: Tensor) -> np.ndarray:
    """Returns the number of ids before the lines at the given byte offsets of a text, (k,) int64.

    `row_splits`, (lines + 1,) int64, are the numbers of ids before each line.
    """
    if not offsets.size:
        return NO_OFFSETS
    newlines = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)
    return np.asarray(row_splits)[np.searchsorted(newlines, offsets)]
