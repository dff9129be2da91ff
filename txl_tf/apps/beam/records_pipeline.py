"""Creating a data set with many workers, which count and encode the texts."""

import functools
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import apache_beam as beam
import numpy as np

from txl_tf.apps.beam.file_ranges import PIECE_BYTES, divide_files, find_range, resume_documents
from txl_tf.apps.beam.runner import Runner, create_work_folder, name_file
from txl_tf.data.files import open_file, read_json, write_json
from txl_tf.data.records.format import RecordsInfo
from txl_tf.data.records.writing import TokenChunk, write_records
from txl_tf.data.text.documents import DocumentFinder
from txl_tf.data.text.learning import choose_fields, count_symbols, select_candidates
from txl_tf.data.text.text_files import EncodingErrors, TextFile, TextSource
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.preparation.corpus import Corpus
from txl_tf.preparation.encoding import (
    SplitCounts,
    check_split,
    encode_source,
    settle_documents,
)
from txl_tf.preparation.options import PrepareOptions
from txl_tf.preparation.prepare import find_texts, make_vocabulary, settle_vocabulary

_SYMBOLS_PER_BLOCK = 2**20
# How often a symbol occurs, the piece with its first occurrence, and its rank in that piece.
Count = tuple[int, int, int]


@dataclass(frozen=True)
class Piece:
    """Small files of a split, or a step of a large one (see `divide_files`)."""

    split: str
    index: int  # counted over all splits
    files: tuple[TextFile, ...]
    piece_bytes: int
    encoding_errors: EncodingErrors

    def open(self, level: str) -> TextSource:
        """Returns the text of the piece, in whole lines."""
        files = tuple(find_range(file, self.piece_bytes) for file in self.files)
        return TextSource(files, level, self.encoding_errors)


def prepare_with_workers(
    options: PrepareOptions, runner: Runner, temp_dir: str, *, piece_bytes: int = PIECE_BYTES
) -> RecordsInfo | None:
    """Creates a data set like `prepare`, with pipelines that count and encode its texts."""
    runner.make_options()  # checks the user's options
    corpus = options.make_corpus()
    texts = find_texts(corpus, options)
    if texts is None:
        return None
    made_from = {"arguments": options.describe(), "files": texts.describe()}
    groups = [
        (split, group)
        for split, source in texts.sources.items()
        for group in divide_files(source.files, piece_bytes)
    ]
    pieces = [
        Piece(split, index, group, piece_bytes, corpus.encoding_errors)
        for index, (split, group) in enumerate(groups)
    ]
    with create_work_folder(temp_dir) as work:
        vocabulary = corpus.read_vocabulary(texts)
        if vocabulary is None:
            vocabulary = _learn_vocabulary(corpus, pieces, runner, work)
        vocabulary, cutoffs = settle_vocabulary(corpus, texts, vocabulary)
        path = name_file(work)
        write_json(path, vocabulary.to_json())

        def build(pipeline: beam.Pipeline) -> beam.PCollection:
            return pipeline | beam.Create(pieces) | beam.Map(encode_piece, corpus, path, work)

        encoded = sorted(runner.run(build, work), key=lambda piece: piece["index"])
        by_split = {split: [p for p in encoded if p["split"] == split] for split in texts.sources}
        return write_records(
            options.data_dir,
            dataset=corpus.name,
            vocabulary=vocabulary,
            splits={s: _read_split(corpus, s, found, vocabulary) for s, found in by_split.items()},
            cutoffs=cutoffs,
            made_from=made_from,
            overwrite=options.overwrite,
        )


def _learn_vocabulary(
    corpus: Corpus, pieces: Sequence[Piece], runner: Runner, work: str
) -> Vocabulary:
    """Learns the vocabulary, like `learn_vocabulary`."""
    level, learning = corpus.level, corpus.learning
    counted = [piece for piece in pieces if piece.split in corpus.counted]

    def build(pipeline: beam.Pipeline) -> beam.PCollection:
        return (
            pipeline
            | beam.Create(counted)
            | beam.FlatMap(count_piece, level=level, lower_case=learning.lower_case)
            | beam.CombinePerKey(add_counts)
        )

    results = runner.run(build, work)
    counts: dict[str, tuple[int, tuple[int, int]]] = {}
    n_symbols = 0
    # In blocks, so that memory does not grow with the number of rare symbols.
    while block := list(islice(results, _SYMBOLS_PER_BLOCK)):
        n_symbols += len(block)
        counts |= {symbol: (n, (piece, rank)) for symbol, (n, piece, rank) in block}
        counts = select_candidates(counts, learning)
    ordered = sorted(counts.items(), key=lambda item: item[1][1])
    fields = choose_fields(
        {symbol: n for symbol, (n, _) in ordered}, learning, n_symbols=n_symbols, report=print
    )
    return make_vocabulary(corpus, fields)


def count_piece(piece: Piece, *, level: str, lower_case: bool) -> Iterator[tuple[str, Count]]:
    """Yields the symbols of a piece with their counts."""
    texts = (chunk.text for chunk in piece.open(level).iterate_chunks())
    counts = count_symbols(level, texts, lower_case=lower_case)
    for rank, (symbol, n) in enumerate(counts.items()):
        yield symbol, (n, piece.index, rank)


def add_counts(counts: Iterable[Count]) -> Count:
    """Returns the total count of a symbol in several pieces, which may come in any order.

    >>> add_counts([(3, 1, 0), (2, 0, 7)])
    (5, 0, 7)
    """
    n_total, first = 0, (1 << 62, 0)
    for n, piece, rank in counts:
        n_total += n
        first = min(first, (piece, rank))
    return n_total, *first


def encode_piece(piece: Piece, corpus: Corpus, vocabulary_path: str, work: str) -> Any:
    """Encodes a piece into a file of ids and document starts, and returns its description."""
    vocabulary = _load_vocabulary(vocabulary_path)
    source = piece.open(vocabulary.level)
    finder = DocumentFinder(*corpus.documents)
    resume_documents(finder, source.files[0])
    counts = SplitCounts()
    chunks = encode_source(
        source, vocabulary, finder=finder, counts=counts, special=corpus.learning.special
    )
    dtype = np.min_scalar_type(len(vocabulary))
    ids, starts, n_tokens = [np.zeros(0, dtype)], [np.zeros(0, np.int64)], 0
    for chunk in chunks:
        ids.append(chunk.ids.astype(dtype))
        starts.append(chunk.document_starts + n_tokens)
        n_tokens += len(chunk.ids)
    path, arrays = name_file(work), io.BytesIO()
    np.savez(arrays, ids=np.concatenate(ids), starts=np.concatenate(starts))
    with open_file(path, "wb") as file:
        file.write(arrays.getvalue())
    unknown = counts.unknown
    if unknown and vocabulary.unknown is not None:
        unknown = Counter({vocabulary.unknown: unknown.total()})  # names are not needed
    return {
        "split": piece.split,
        "index": piece.index,
        "path": path,
        "unknown": unknown,
        "literal": counts.literal,
    }


@functools.lru_cache(maxsize=1)
def _load_vocabulary(path: str) -> Vocabulary:
    """Reads the vocabulary once in each process."""
    return Vocabulary.from_json(read_json(path))


def _read_split(
    corpus: Corpus, split: str, pieces: Iterable[Mapping[str, Any]], vocabulary: Vocabulary
) -> Iterator[TokenChunk]:
    """Yields the tokens of encoded pieces, in order, and checks their counts at the end."""
    counts = SplitCounts()

    def read_pieces() -> Iterator[TokenChunk]:
        for piece in pieces:
            counts.unknown.update(piece["unknown"])
            counts.literal.update(piece["literal"])
            with open_file(piece["path"]) as file:
                arrays = np.load(io.BytesIO(file.read()))
            counts.n_tokens += len(arrays["ids"])
            yield TokenChunk(arrays["ids"], arrays["starts"])

    yield from settle_documents(read_pieces())
    check_split(corpus, split, vocabulary, counts)
