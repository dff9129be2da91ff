"""Counting the symbols of texts, piece by piece."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from txl_tf.data.characters import read_codes
from txl_tf.data.parallel import map_ordered
from txl_tf.data.words import is_worth_a_graph, make_table, split_words

_N_CODES = {"byte": 256, "char": 0x110000}


def count_symbols(
    level: str, texts: Iterable[bytes], *, lower_case: bool = False, n_threads: int = 1
) -> dict[str, int]:
    """Counts the symbols of texts.

    Args:
        level: "byte", "char" or "word".
        texts: The texts, in order; UTF-8 unless the level is "byte". They are read once, a few at
            a time.
        lower_case: At level "word", whether to put the texts into lower case.
        n_threads: How many texts to count at once; the result does not depend on it.

    Returns:
        How often each symbol occurs, in order of first appearance.
    """
    if level == "word":
        return _count_words(texts, lower_case=lower_case, n_threads=n_threads)
    return _count_codes(texts, is_bytes=level == "byte", n_threads=n_threads)


def _count_codes(texts: Iterable[bytes], *, is_bytes: bool, n_threads: int) -> dict[str, int]:
    totals = np.zeros(_N_CODES["byte" if is_bytes else "char"], np.int64)
    order: list[int] = []

    def count(text: bytes) -> tuple[np.ndarray, np.ndarray]:
        codes = read_codes(text, is_bytes=is_bytes)
        return codes, np.bincount(codes)

    for codes, counts in map_ordered(count, texts, n_threads):
        is_new = (counts > 0) & (totals[: len(counts)] == 0)
        if is_new.any():
            # The first place of each new code among the new ones gives their order.
            order += dict.fromkeys(codes[is_new[codes]].tolist())
        totals[: len(counts)] += counts
    return {str(code) if is_bytes else chr(code): int(totals[code]) for code in order}


def _count_words(texts: Iterable[bytes], *, lower_case: bool, n_threads: int) -> dict[str, int]:
    """Counts words: those that a table knows by their ids, the others one by one.

    The table is made anew when the words have doubled, so that after a while it knows most.
    """
    counter = _WordCounter(lower_case=lower_case)
    for counts, others in map_ordered(counter.look_up, texts, n_threads):
        counter.add(counts, others)
    return counter.finish()


class _WordCounter:
    """The words seen so far, in order of first appearance, and how often."""

    def __init__(self, *, lower_case: bool) -> None:
        self._lower_case = lower_case
        self._index: dict[bytes, int] = {}
        self._counts = np.zeros(1024, np.int64)
        self._n_in_table = 0
        self._table = make_table([])

    def look_up(self, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Returns the counts of the words that the table knows, and the other words."""
        split = self._split_in_graph if is_worth_a_graph(text) else self._split
        words = split(text)
        found = self._table.lookup(words).numpy()
        is_known = found >= 0
        # Only the others become objects of Python.
        return np.bincount(found[is_known]), words[~is_known].numpy()

    def add(self, counts: np.ndarray, others: np.ndarray) -> None:
        """Adds what `look_up` returned."""
        self._counts[: len(counts)] += counts
        index = self._index
        places = np.fromiter(
            (index.setdefault(word, len(index)) for word in others.tolist()), np.int64, len(others)
        )
        if len(index) > len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros(len(index), np.int64)])
        if len(places):
            more = np.bincount(places)
            self._counts[: len(more)] += more
        if len(index) > 2 * self._n_in_table:
            self._n_in_table = len(index)
            self._table = make_table(list(index))

    def finish(self) -> dict[str, int]:
        """Returns the words and their counts."""
        words = (word.decode("utf-8") for word in self._index)
        return dict(zip(words, self._counts.tolist(), strict=False))

    def _split(self, text: Any) -> Any:
        import tensorflow as tf

        return split_words(tf.reshape(text, [1]), lower_case=self._lower_case).flat_values

    @cached_property
    def _split_in_graph(self) -> Any:
        import tensorflow as tf

        signature = [tf.TensorSpec([], tf.string)]
        return tf.function(self._split, input_signature=signature, autograph=False)
