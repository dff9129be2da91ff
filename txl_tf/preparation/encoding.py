"""Encoding the text of a split to tokens."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from txl_tf.data.parallel import map_ordered
from txl_tf.data.records.writing import TokenChunk
from txl_tf.data.text.codec import Encoded
from txl_tf.data.text.documents import DocumentFinder
from txl_tf.data.text.text_files import Chunk
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.data.text.words import WHITE_SPACE
from txl_tf.preparation.plan import Source


def encode_source(
    source: Source,
    vocabulary: Vocabulary,
    *,
    finder: DocumentFinder,
    unknown: Counter[str],
    special: Iterable[str] = (),
    literal: Counter[str] | None = None,
    n_threads: int = 1,
    report: Callable[[int], object] = lambda n_bytes: None,
    is_piece: bool = False,
) -> Iterator[TokenChunk]:
    """Yields the tokens of a split with their document boundaries.

    Occurrences of unknown symbols and literal ones of `special` are added to the counters. If the
    vocabulary has no symbol for unknown ones, chunks with unknown symbols are left out. The number
    of threads does not affect the result.

    With `is_piece`, more text may follow the source. A chunk without tokens, whose document
    boundary is 0, is then the last one if a document has begun but has no token yet.
    """
    special = tuple(special) if literal is not None else ()

    def encode(located: tuple[Chunk, np.ndarray]) -> tuple[Encoded, Counter[str], int]:
        chunk, offsets = located
        encoded = vocabulary.codec.encode(chunk.text, offsets, begins_line=chunk.begins_line)
        found = count_literal(chunk.text, special, lower_case=vocabulary.lower_case)
        return encoded, found, len(chunk.text)

    located = ((chunk, finder.find(chunk)) for chunk in source.iterate_chunks())
    is_open = False  # whether a document has begun but has no token yet
    for encoded, found, n_bytes in map_ordered(encode, located, n_threads):
        report(n_bytes)
        unknown.update(encoded.unknown)
        if literal is not None:
            literal.update(found)
        if encoded.unknown and vocabulary.unknown is None:
            continue
        n_tokens = len(encoded.ids)
        starts = np.unique(np.concatenate([[0] * is_open, encoded.positions]))
        is_open = bool(starts.size) and int(starts[-1]) == n_tokens
        yield TokenChunk(encoded.ids, starts[starts < n_tokens].astype(np.int64))
    if is_piece and is_open:
        yield TokenChunk(np.zeros(0, np.int32), np.zeros(1, np.int64))


def count_literal(text: bytes, special: Iterable[str], *, lower_case: bool) -> Counter[str]:
    """Counts the words of a text that are spelled like special symbols, such as `<eos>`."""
    searched = text.lower() if lower_case else text
    present = [symbol for symbol in special if symbol.encode("utf-8") in searched]
    if not present:  # as in almost all texts
        return Counter()
    words = Counter(WHITE_SPACE.split(searched.decode("utf-8")))
    return +Counter({symbol: words[symbol] for symbol in present})  # without zeros


def shuffle_documents(
    chunks: Iterable[TokenChunk], *, seed: tuple[int, ...], n_shuffles: int
) -> Iterator[TokenChunk]:
    """Yields all documents of a text in random order, one chunk for each of several orders.

    The chunks, of which the first one begins a document, are held in memory together.
    """
    held = list(chunks)
    if not held:
        return
    ids = np.concatenate([chunk.ids for chunk in held])
    ends = np.cumsum([len(chunk.ids) for chunk in held])
    starts = np.concatenate(
        [
            chunk.document_starts + end - len(chunk.ids)
            for chunk, end in zip(held, ends, strict=True)
        ]
    )
    lengths = np.diff(starts, append=len(ids))
    for shuffle in range(n_shuffles):
        order = np.random.default_rng([*seed, shuffle]).permutation(len(starts))
        new_starts = np.cumsum(lengths[order]) - lengths[order]
        sources = np.repeat(starts[order] - new_starts, lengths[order]) + np.arange(len(ids))
        yield TokenChunk(ids[sources], new_starts)
