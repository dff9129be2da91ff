"""Counting symbols with many workers.

Each piece of text is counted by itself. Its symbols go to groups by their hash, and the counts of a
group are added up by one worker, which keeps only those that may get into the vocabulary: memory
grows neither with the text nor, given a largest vocabulary, with the number of words.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam

from txl_tf.apps.beam.file_ranges import find_range, restore_file
from txl_tf.apps.beam.runner import Runner
from txl_tf.apps.beam.storage import install_storage, remove_folder
from txl_tf.apps.beam.tasks import ERROR, Task, read_results, run_once, write_result
from txl_tf.data.text.learning import (
    LearningOptions,
    choose_fields,
    count_symbols,
    select_candidates,
)
from txl_tf.data.text.text_files import EncodingErrors, TextSource
from txl_tf.errors import UserError

_COUNTED, _FAILED = "counted", "failed"
_N_GROUPS = 256
# The counts of a symbol: how often, and the piece and the rank in it of the first occurrence.
Counts = dict[str, tuple[int, tuple[int, int]]]


@dataclass(frozen=True)
class CountingStage:
    """How the symbols of pieces are counted.

    Args:
        level: The level.
        encoding_errors: As in `TextSource`.
        learning: How symbols are chosen.
        piece_bytes: The size of a piece in bytes.
    """

    level: str
    encoding_errors: EncodingErrors
    learning: LearningOptions
    piece_bytes: int

    def count(self, index: int, task: Task) -> Counts:
        """Returns the counts of a piece.

        Raises:
            UserError: If it cannot be read.
        """
        files = tuple(find_range(restore_file(file), self.piece_bytes) for file in task["files"])
        source = TextSource(files, self.level, self.encoding_errors)
        texts = (chunk.text for chunk in source.iterate_chunks())
        counts = count_symbols(self.level, texts, lower_case=self.learning.lower_case)
        return {symbol: (n, (index, rank)) for rank, (symbol, n) in enumerate(counts.items())}


def learn_from_pieces(
    runner: Runner, folder: str, stage: CountingStage, tasks: Sequence[Task]
) -> dict[str, Any]:
    """Learns the arguments of a `Vocabulary`, as `learn_fields` does.

    Args:
        runner: What runs the pipeline.
        folder: The folder of the counts; it is removed at the end.
        stage: How to count.
        tasks: The pieces, in order.

    Raises:
        UserError: As in `learn_fields`, or if a piece cannot be read.
    """
    remove_folder(folder)
    print(f"{_COUNTED}: {len(tasks):,} tasks on {runner.name}")
    step = _CountAll(folder, stage)
    run_once(runner, folder, _COUNTED, dict(enumerate(tasks)), step)
    for failed in read_results(folder, _FAILED):
        remove_folder(folder)
        raise UserError(failed[ERROR])
    counts: Counts = {}
    n_symbols = 0
    for result in read_results(folder, _COUNTED):
        n_symbols += result["n_symbols"]
        counts = select_candidates(counts | _restore(result["counts"]), stage.learning)
    ordered = sorted(counts.items(), key=lambda item: item[1][1])
    fields = choose_fields(
        {symbol: n for symbol, (n, _) in ordered},
        stage.learning,
        n_symbols=n_symbols,
        report=print,
    )
    remove_folder(folder)
    return fields


def add_counts(parts: Iterable[Counts]) -> Counts:
    """Returns the counts of several pieces together, in any order."""
    total: Counts = {}
    for part in parts:
        for symbol, (n, place) in part.items():
            n_before, first = total.get(symbol, (0, place))
            total[symbol] = (n_before + n, min(first, place))
    return total


def split_counts(counts: Counts, n_groups: int = _N_GROUPS) -> Iterator[tuple[int, Counts]]:
    """Yields the number and the counts of each group of symbols, the same in every process."""
    groups: dict[int, Counts] = {}
    for symbol, count in counts.items():
        group = zlib.crc32(symbol.encode("utf-8", "surrogatepass")) % n_groups
        groups.setdefault(group, {})[symbol] = count
    yield from groups.items()


def _describe(counts: Counts) -> list[list[Any]]:
    """Returns counts in a form that JSON can represent; see `_restore`."""
    return [[symbol, n, *place] for symbol, (n, place) in counts.items()]


def _restore(described: Iterable[list[Any]]) -> Counts:
    """Returns the counts that `_describe` described."""
    return {symbol: (n, (piece, rank)) for symbol, n, piece, rank in described}


class _CountAll(beam.PTransform):
    """Counts the pieces, and writes the counts of each group of symbols."""

    def __init__(self, folder: str, stage: CountingStage):
        super().__init__()
        self._folder = folder
        self._stage = stage

    def expand(self, pieces: beam.PCollection) -> beam.PCollection:
        return (
            pieces
            | "CountPiece" >> beam.ParDo(_Count(self._folder, self._stage))
            | beam.GroupByKey()
            | "AddCounts" >> beam.ParDo(_Add(self._folder, self._stage.learning))
        )


class _Count(beam.DoFn):
    """Yields the counts of a piece, by group, as JSON."""

    def __init__(self, folder: str, stage: CountingStage):
        self._folder = folder
        self._stage = stage

    def setup(self) -> None:
        install_storage()

    def process(self, element: tuple[int, Task]) -> Iterator[tuple[int, str]]:
        index, task = element
        try:
            counts = self._stage.count(index, task)
        except UserError as error:
            write_result(self._folder, _FAILED, index, {ERROR: str(error)})
            return
        for group, part in split_counts(counts):
            yield group, json.dumps(_describe(part))


class _Add(beam.DoFn):
    """Adds up the counts of a group, and writes those of the candidates."""

    def __init__(self, folder: str, learning: LearningOptions):
        self._folder = folder
        self._learning = learning

    def process(self, element: tuple[int, Iterable[str]]) -> None:
        group, parts = element
        total = add_counts(_restore(json.loads(part)) for part in parts)
        left = select_candidates(total, self._learning)
        result = {"n_symbols": len(total), "counts": _describe(left)}
        write_result(self._folder, _COUNTED, group, result)
