"""Words: tensorflow-text splits a text on white space, a table gives the id of each word.

The functions that take and give tensors are the same in preparing and inside a SavedModel.
tensorflow is imported when a text is first encoded: decoding does without.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from txl_tf.data.codec import NO_OFFSETS, Encoded, Tensor

# The characters of Unicode's property White_Space, on which tensorflow-text splits: first those
# that have more than one byte in UTF-8.
_WIDE_SPACES = "\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
WHITE_SPACE = re.compile(f"[\t-\r {_WIDE_SPACES}]")
_NEWLINE = 10


def split_words(lines: Tensor, *, lower_case: bool = False) -> Tensor:
    """Splits lines into words.

    Args:
        lines: (n,) string, UTF-8.
        lower_case: Whether to put them into lower case.

    Returns:
        The words, ragged (n, words) string.
    """
    import tensorflow as tf
    import tensorflow_text as tf_text

    if lower_case:
        lines = put_into_lower_case(lines)
    # tensorflow-text takes white space for one byte, and leaves the others to the word before.
    is_ascii = tf.reduce_all(tf.strings.length(lines) == tf.strings.length(lines, "UTF8_CHAR"))
    lines = tf.cond(
        is_ascii,
        lambda: tf.identity(lines),
        lambda: tf.strings.regex_replace(lines, f"[{_WIDE_SPACES}]", " "),
    )
    return tf_text.WhitespaceTokenizer().tokenize(lines)


def put_into_lower_case(texts: Tensor) -> Tensor:
    """Puts texts, (n,) string in UTF-8, into lower case."""
    import tensorflow as tf

    # tf.strings.lower takes a NUL for the end of a text.
    pieces = tf.strings.split(texts, "\0")
    lower = tf.strings.lower(pieces.flat_values, encoding="utf-8")
    joined = tf.strings.reduce_join(
        pieces.with_flat_values(tf.strings.join([lower, "\0"])), axis=-1
    )
    lengths = tf.strings.length(joined) - 1
    return tf.strings.substr(joined, tf.zeros_like(lengths), lengths)


class WordCodec:
    """Encodes words, with marks where lines begin and end.

    A line ends at a line feed. What follows the last one is a line that is not finished: it gets no
    mark for its end and, if it is empty, none for its beginning.

    Args:
        symbols: The words in the order of their ids.
        lower_case: Whether texts are put into lower case.
        unknown_id: The id for what is not known; -1 for none.
        line_start: The symbol that stands before each line, or `None`.
        line_end: The symbol that stands behind each line, or `None`.
    """

    def __init__(
        self,
        symbols: Sequence[str],
        *,
        lower_case: bool = False,
        unknown_id: int = -1,
        line_start: str | None = None,
        line_end: str | None = None,
    ) -> None:
        self._symbols = symbols
        self._lower_case = lower_case
        self._unknown_id = unknown_id
        self._line_start = line_start
        self._line_end = line_end

    def encode(
        self, text: bytes, offsets: np.ndarray = NO_OFFSETS, *, begins_line: bool = True
    ) -> Encoded:
        """See `Codec.encode`."""
        encode = self._encode_in_graph if is_worth_a_graph(text) else self._encode_eagerly
        ids, row_splits, others = (result.numpy() for result in encode(text, begins_line))
        unknown = Counter(word.decode("utf-8") for word in others.tolist())
        if unknown and self._unknown_id >= 0:
            ids = np.where(ids < 0, np.int32(self._unknown_id), ids)
        return Encoded(ids, locate_lines(text, offsets, row_splits), unknown)

    def count_marks(self, text: bytes, *, begins_line: bool = True) -> Counter[str]:
        """Returns how often `encode` puts each mark of a line into the ids of a text.

        Args:
            text: The text, UTF-8.
            begins_line: Whether the text begins a line.
        """
        n_ends = text.count(b"\n")
        n_starts = n_ends + (text[-1:] not in (b"", b"\n"))
        marks: Counter[str] = Counter()
        if self._line_start is not None and n_starts:
            marks[self._line_start] += n_starts - (not begins_line)
        if self._line_end is not None:
            marks[self._line_end] += n_ends
        return marks

    def make_resource(self) -> Any:
        """See `Codec.make_resource`: the table of words."""
        return make_table(self._symbols)

    def tokenize(self, texts: Tensor, resource: Any) -> Tensor:
        """See `Codec.tokenize`."""
        import tensorflow as tf

        lines, words = self._split(texts)
        found = resource.lookup(words.flat_values)
        known = tf.where(found < 0, self._unknown_id, found)
        marked = self._mark_lines(lines, words.with_flat_values(known), True)
        return lines.with_values(marked).merge_dims(1, 2)

    def decode(self, ids: np.ndarray) -> bytes:
        """See `Codec.decode`: words with a space between, a line break between marked lines."""
        parts: list[str] = []
        marks = {self._line_start, self._line_end} - {None}
        was_word = False
        for word in (self._symbols[i] for i in ids):
            if word not in marks:
                parts += [" ", word] if was_word else [word]
                was_word = True
                continue
            # One symbol may be both: it ends a line that has words, else it begins one. And where
            # lines have no mark for their end, the next one's beginning is it.
            if was_word or word != self._line_start:
                parts.append("\n")
            was_word = False
        return "".join(parts).encode("utf-8", errors="surrogatepass")

    @cached_property
    def _table(self) -> Any:
        return self.make_resource()

    def _encode_eagerly(self, text: Tensor, begins_line: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the ids, the ids before each line, and the words that are not known."""
        import tensorflow as tf

        with tf.init_scope():  # a table that is made in a graph is filled at each call
            table = self._table
        lines, words = self._split(tf.reshape(text, [1]))
        found = table.lookup(words.flat_values)
        marked = self._mark_lines(lines, words.with_flat_values(found), begins_line)
        others = tf.boolean_mask(words.flat_values, found < 0)
        return marked.flat_values, marked.row_splits, others

    @cached_property
    def _encode_in_graph(self) -> Any:
        import tensorflow as tf

        signature = [tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.bool)]
        return tf.function(self._encode_eagerly, input_signature=signature, autograph=False)

    def _split(self, texts: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the lines, ragged (n, lines), and the words of all of them, (lines, words)."""
        import tensorflow as tf

        lines = tf.strings.split(texts, "\n")
        return lines, split_words(lines.flat_values, lower_case=self._lower_case)

    def _mark_lines(self, lines: Tensor, ids: Tensor, begins_line: Tensor | bool) -> Tensor:
        """Adds the marks to the ids of each line, ragged (lines, ids) int32.

        Args:
            lines: Ragged (n, lines) string.
            ids: Ragged (lines, ids) int32, the lines of all texts.
            begins_line: Whether each text begins a line.
        """
        import tensorflow as tf

        if self._line_start is None and self._line_end is None:
            return ids
        last = lines.row_splits[1:] - 1  # a text has at least one line, maybe empty
        is_finished = tf.tensor_scatter_nd_update(
            tf.ones_like(lines.flat_values, tf.bool), last[:, None], tf.zeros_like(last, tf.bool)
        )
        begins = tf.logical_or(is_finished, lines.flat_values != "")
        first = lines.row_splits[:-1]
        begins = tf.tensor_scatter_nd_update(
            begins, first[:, None], tf.logical_and(tf.gather(begins, first), begins_line)
        )
        none = tf.zeros_like(is_finished)
        has_start = none if self._line_start is None else begins
        has_end = none if self._line_end is None else is_finished
        starts, ends = tf.cast(has_start, tf.int64), tf.cast(has_end, tf.int64)
        # Where each line begins with its marks. Not by `tf.concat` of ragged tensors: it transposes
        # integers, on which oneDNN of some CPUs prints a remark.
        splits = ids.row_splits + tf.concat([[0], tf.cumsum(starts + ends)], axis=0)
        shifts = splits[:-1] + starts - ids.row_splits[:-1]
        places = tf.range(tf.size(ids.flat_values, tf.int64)) + tf.gather(
            shifts, ids.value_rowids()
        )
        marked = tf.fill(splits[-1:], self._find_mark(self._line_end))
        marked = tf.tensor_scatter_nd_update(marked, places[:, None], ids.flat_values)
        first = tf.boolean_mask(splits[:-1], has_start)[:, None]
        mark = tf.fill(tf.shape(first)[:1], self._find_mark(self._line_start))
        marked = tf.tensor_scatter_nd_update(marked, first, mark)
        return tf.RaggedTensor.from_row_splits(marked, splits, validate=False)

    def _find_mark(self, symbol: str | bytes | None) -> int:
        """Returns the id of a mark; -1 if there is none."""
        return -1 if symbol is None else self._symbols.index(symbol)


def is_worth_a_graph(text: bytes) -> bool:
    """Tells whether to trace a graph for a text, which takes a quarter of a second.

    Python waits for a graph as a whole, and leaves other threads alone meanwhile.
    """
    return len(text) > 2**16


def make_table(symbols: Sequence[str | bytes]) -> Any:
    """Returns a table from words to their places in `symbols`, int32; others are -1."""
    import tensorflow as tf

    keys = list(symbols) or [" "]  # tensorflow wants one; no word is a space
    pairs = tf.lookup.KeyValueTensorInitializer(
        tf.constant(keys, tf.string), tf.range(len(keys), dtype=tf.int32)
    )
    return tf.lookup.StaticHashTable(pairs, -1)


def locate_lines(text: bytes, offsets: np.ndarray, row_splits: Tensor) -> np.ndarray:
    """Returns the ids before each of some lines.

    Args:
        text: The text.
        offsets: Where those lines begin, (k,) int64 byte offsets.
        row_splits: The ids before each line, (lines + 1,) int64.
    """
    if not offsets.size:
        return NO_OFFSETS
    newlines = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)
    return np.asarray(row_splits)[np.searchsorted(newlines, offsets)]
