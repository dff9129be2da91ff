"""Encoding the text of a split as tokens."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from txl_tf.data.parallel import map_ordered
from txl_tf.data.records.writing import TokenChunk
from txl_tf.data.text.codec import Encoded
from txl_tf.data.text.documents import DocumentFinder
from txl_tf.data.text.text_files import Chunk, TextSource
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.data.text.words import WHITE_SPACE
from txl_tf.errors import UserError
from txl_tf.preparation.corpus import Corpus
from txl_tf.progress import Bar

# If the counts of a public set differ from the published ones by less than this share, it is
# damaged; if by more, it is an excerpt.
_NEAR = 0.01


@dataclass
class SplitCounts:
    """The counts of a split while it is encoded."""

    n_tokens: int = 0
    n_repeats: int = 1  # how often the split contains its text, each time shuffled
    unknown: Counter[str] = field(default_factory=Counter)  # occurrences of unknown symbols
    literal: Counter[str] = field(default_factory=Counter)  # words spelled like special symbols


def encode_split(
    corpus: Corpus, split: str, source: TextSource, vocabulary: Vocabulary, *, n_threads: int
) -> Iterator[TokenChunk]:
    """Yields the tokens of a split, with a progress bar, and checks them at the end."""
    counts = SplitCounts()
    parts = [source]
    is_shuffled = corpus.num_shuffles > 0 and split == "train"
    if is_shuffled:
        parts = [replace(source, files=(file,)) for file in source.files]
        counts.n_repeats = corpus.num_shuffles
    with Bar(split, total=source.size, unit="B", unit_scale=True) as bar:
        for index, part in enumerate(parts):
            chunks = encode_source(
                part,
                vocabulary,
                finder=DocumentFinder(*corpus.documents),
                counts=counts,
                special=corpus.learning.special,
                n_threads=n_threads,
                report=bar.update,
            )
            chunks = settle_documents(chunks)
            if is_shuffled:
                seed = (corpus.seed, index)
                chunks = shuffle_documents(chunks, seed=seed, n_shuffles=corpus.num_shuffles)
            for chunk in chunks:
                counts.n_tokens += len(chunk.ids)
                yield chunk
    check_split(corpus, split, vocabulary, counts)


def check_split(corpus: Corpus, split: str, vocabulary: Vocabulary, counts: SplitCounts) -> None:
    """Checks the counts of an encoded split, and prints notable ones."""
    unknown = counts.unknown
    if unknown and vocabulary.unknown is None:
        examples = ", ".join(f"{symbol!r} ({n:,}x)" for symbol, n in unknown.most_common(3))
        raise UserError(
            f"{split}: {unknown.total():,} {vocabulary.level}s, {len(unknown):,} different ones, "
            f"are not in the vocabulary of {len(vocabulary):,}: {examples}. Define a symbol for "
            "unknown ones, such as --unknown '<unk>' for words."
        )
    if not counts.n_tokens:
        raise UserError(f"{split} is empty: its files contain no {vocabulary.level}s.")
    if unknown:
        n_unknown = unknown.total()
        share = n_unknown * counts.n_repeats / counts.n_tokens
        print(f"{split}: {n_unknown:,} unknown ({share:.2%}) replaced by {vocabulary.unknown}")
    if counts.literal:
        times = [f"{name} {n:,} time{'s' * (n != 1)}" for name, n in counts.literal.items()]
        print(
            f"{split}: words spelled like special symbols get these symbols' ids: "
            f"{', '.join(times)}"
        )
    if difference := corpus.compare_count(split, counts.n_tokens):
        published = corpus.counts[split]
        if abs(counts.n_tokens - published) < _NEAR * published:
            raise UserError(f"{difference} A file is damaged or was changed.")
        print(difference)


def encode_source(
    source: TextSource,
    vocabulary: Vocabulary,
    *,
    finder: DocumentFinder,
    counts: SplitCounts,
    special: Iterable[str] = (),
    n_threads: int = 1,
    report: Callable[[int], object] = lambda n_bytes: None,
) -> Iterator[TokenChunk]:
    """Yields the tokens of a text; `settle_documents` completes their document boundaries.

    Counts unknown symbols, and words that are spelled like line markers or symbols in `special`. If
    the vocabulary has no symbol for unknown ones, chunks with unknown symbols are left out. The
    number of threads does not affect the result.

    In the 2019 code: `encode_file`.
    """
    special = _list_special(vocabulary, special)

    def encode(located: tuple[Chunk, np.ndarray]) -> tuple[Encoded, Counter[str], int]:
        chunk, offsets = located
        encoded = vocabulary.codec.encode(chunk.text, offsets, begins_line=chunk.begins_line)
        found = count_literal(chunk.text, special, lower_case=vocabulary.lower_case)
        return encoded, found, len(chunk.text)

    located = ((chunk, finder.find(chunk)) for chunk in source.iterate_chunks())
    for encoded, found, n_bytes in map_ordered(encode, located, n_threads):
        report(n_bytes)
        counts.unknown.update(encoded.unknown)
        counts.literal.update(found)
        if vocabulary.unknown is not None or not encoded.unknown:
            yield TokenChunk(encoded.ids, encoded.positions)


def settle_documents(chunks: Iterable[TokenChunk]) -> Iterator[TokenChunk]:
    """Moves the start of a document that has no token in its first chunk to the next token."""
    is_open = False  # whether a document has begun but has no token yet
    for ids, positions in chunks:
        starts = np.unique(np.concatenate([np.zeros(int(is_open), np.int64), positions]))
        is_open = bool(starts.size) and int(starts[-1]) == len(ids)
        yield TokenChunk(ids, starts[starts < len(ids)])


def _list_special(vocabulary: Vocabulary, special: Iterable[str]) -> list[str]:
    """Returns the symbols with a special meaning: the line markers and `special`."""
    symbols = dict.fromkeys((vocabulary.line_start, vocabulary.line_end, *special))
    return [name for name in symbols if name is not None and name in vocabulary.symbols]


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
    """Yields all documents of a text in several random orders, one chunk per order.

    All chunks are held in memory; the first one must begin a document.

    In the 2019 code: `_preprocess`.
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
