"""From the text of a split to its tokens."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np

from txl_tf.data.codec import Encoded
from txl_tf.data.documents import DocumentFinder
from txl_tf.data.parallel import map_ordered
from txl_tf.data.shards import TokenChunk
from txl_tf.data.text_files import Chunk
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.data.words import WordCodec
from txl_tf.errors import UserError


class Source(Protocol):
    """The text of a split, read as often as needed."""

    @property
    def size(self) -> int | None:
        """The bytes of the text; `None` if only reading it can tell."""
        ...

    def iterate_chunks(self) -> Iterator[Chunk]:
        """Yields the text, a piece at a time."""
        ...


def encode_source(
    source: Source,
    vocabulary: Vocabulary,
    *,
    documents: DocumentFinder,
    unknown: Counter[str],
    special: Iterable[str] = (),
    literal: Counter[str] | None = None,
    n_threads: int = 1,
    report: Callable[[int], object] = lambda n_bytes: None,
) -> Iterator[TokenChunk]:
    """Yields the tokens of a split, with the documents that begin in them.

    Args:
        source: The text.
        vocabulary: Its symbols.
        documents: Where documents begin; used for one text only.
        unknown: How often each symbol occurred that is not known is added to this.
        special: Symbols to count in the text, as in `count_literal`.
        literal: How often each of `special` stood in the text is added to this.
        n_threads: How many chunks to encode at once; the result does not depend on it.
        report: Called with the bytes of each chunk that is done.

    Yields:
        The tokens. Where symbols are unknown and the vocabulary has none for those, these are
        left out: `check_unknown` must be called in the end.
    """
    special = tuple(special) if literal is not None else ()

    def encode(located: tuple[Chunk, np.ndarray]) -> tuple[Encoded, Counter[str], int]:
        chunk, offsets = located
        encoded = vocabulary.codec.encode(chunk.text, offsets, begins_line=chunk.begins_line)
        return encoded, count_literal(encoded, chunk, vocabulary, special), len(chunk.text)

    located = ((chunk, documents.find(chunk)) for chunk in source.iterate_chunks())
    is_open = False  # whether a document began whose first token has not come yet
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


def count_literal(
    encoded: Encoded, chunk: Chunk, vocabulary: Vocabulary, special: Iterable[str]
) -> Counter[str]:
    """Counts the words of a chunk that are special symbols, as the word `<eos>` in a text.

    Counting ids costs a small part of encoding them. What is no word of the text is subtracted:
    the marks of the lines, and the unknown words.

    Args:
        encoded: What the chunk was encoded to.
        chunk: The chunk.
        vocabulary: Its symbols.
        special: The symbols to count; those that the vocabulary lacks are left out.
    """
    marks: Counter[str] = Counter()
    if isinstance(vocabulary.codec, WordCodec):
        marks = vocabulary.codec.count_marks(chunk.text, begins_line=chunk.begins_line)
    if vocabulary.unknown is not None:
        marks[vocabulary.unknown] += encoded.unknown.total()
    literal: Counter[str] = Counter()
    for symbol in special:
        symbol_id = vocabulary.find_id(symbol)
        if symbol_id is not None:
            literal[symbol] = int(np.count_nonzero(encoded.ids == symbol_id)) - marks[symbol]
    return +literal  # without zeros


def check_unknown(unknown: Counter[str], vocabulary: Vocabulary, split: str) -> None:
    """Checks that all symbols of a split were known.

    Args:
        unknown: How often each symbol occurred that is not.
        vocabulary: The symbols.
        split: The split.

    Raises:
        UserError: If some are not known, and the vocabulary has no symbol for those.
    """
    if not unknown or vocabulary.unknown is not None:
        return
    examples = ", ".join(f"{symbol!r} ({count:,}x)" for symbol, count in unknown.most_common(3))
    raise UserError(
        f"{split}: {unknown.total():,} {vocabulary.level}s, {len(unknown):,} different ones, are "
        f"not in the vocabulary of {len(vocabulary):,}: {examples}. A symbol for unknown ones, "
        "as --unknown '<unk>' for words, would stand for them."
    )


def shuffle_documents(
    chunks: Iterable[TokenChunk], *, seed: tuple[int, ...], n_shuffles: int
) -> Iterator[TokenChunk]:
    """Puts the documents of some chunks into random order, several times over.

    Args:
        chunks: The tokens, held in memory together; each document begins in them.
        seed: Of the orders.
        n_shuffles: How many orders to yield, one after the other.

    Yields:
        All tokens, once for each order.
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
        places = np.repeat(starts[order] - new_starts, lengths[order]) + np.arange(len(ids))
        yield TokenChunk(ids[places], new_starts)
