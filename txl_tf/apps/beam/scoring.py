"""Scoring a collection of texts with many workers."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any

from apache_beam.utils.shared import Shared

from txl_tf.apps.beam.file_ranges import (
    PIECE_BYTES,
    describe_file,
    divide_files,
    find_range,
    restore_file,
    resume_documents,
)
from txl_tf.apps.beam.runner import Runner
from txl_tf.apps.beam.storage import (
    WORK_PREFIX,
    BeamStorage,
    create_file,
    list_names,
    move_file,
    name_once,
    remove_folder,
    write_file,
)
from txl_tf.apps.beam.tasks import Task, run_tasks
from txl_tf.apps.file_scores import FileScorer, ScoredFile, ScoringSettings, load_model
from txl_tf.data.files import join_path, use_storage
from txl_tf.data.text.text_files import TextFile, TextSource, find_files
from txl_tf.errors import UserError
from txl_tf.scoring.text_report import JsonLines
from txl_tf.scoring.text_scores import TextTotals
from txl_tf.version import __version__

TOTAL_NAME = "total.jsonl"


@dataclass(frozen=True)
class TextsStage:
    """Counts the texts that begin in each step of a large file, and finds the first one.

    Args:
        settings: How files are scored.
        piece_bytes: The size of a step in bytes.
    """

    settings: ScoringSettings
    piece_bytes: int
    name: str = "texts"

    def setup(self) -> None:
        """Loads nothing."""

    def run(self, index: int, task: Task) -> Task:
        """Returns the number of texts, and the offset of the first one; `None` if there is none."""
        finder = self.settings.make_finder()
        assert finder is not None
        file = find_range(restore_file(task["files"][0]), self.piece_bytes)
        resume_documents(finder, file)
        n_texts, first, place = 0, None, file.start
        # Lines of bytes: whether they are UTF-8 is checked when they are encoded.
        for chunk in TextSource((file,), "byte").iterate_chunks():
            begins = finder.find(chunk)
            if first is None and len(begins):
                first = place + int(begins[0])
            n_texts += len(begins)
            place += len(chunk.text)
        return {"n_texts": n_texts, "first": first}


@dataclass
class ScoringStage:
    """Scores pieces; the result of each names the file of its scores and has their sum.

    Args:
        folder: The folder of these files.
        settings: How files are scored.
    """

    folder: str
    settings: ScoringSettings
    name: str = "scored"
    shared: Shared = field(default_factory=Shared)

    def setup(self) -> None:
        """Loads the model once in each process; each thread compiles its own steps."""
        settings = self.settings
        model = self.shared.acquire(lambda: load_model(settings), tag=settings.run)
        self._scorer = FileScorer(settings, model)
        self._report = JsonLines(settings.by, self._scorer.vocabulary)

    def run(self, index: int, task: Task) -> Task:
        """Scores a piece."""
        files = [
            ScoredFile(restore_file(file), n_before)
            for file, n_before in zip(task["files"], task["n_before"], strict=True)
        ]
        total, n_texts = TextTotals(0.0, 0, self._scorer.vocabulary.level, 0), 0
        path = name_once(self.folder, f"scores-{index:07d}", ".jsonl")
        with create_file(path) as out:
            for name, score in self._scorer.score(files):
                total, n_texts = total + score, n_texts + 1
                out.write(f"{self._report.format_text(name, score)}\n".encode())
        return {"path": path, "n_texts": n_texts, "total": asdict(total)}


def score_with_workers(
    patterns: Sequence[str],
    settings: ScoringSettings,
    runner: Runner,
    out: str,
    *,
    piece_bytes: int = PIECE_BYTES,
) -> tuple[int, TextTotals]:
    """Scores files, and writes the scores as files of JSON lines.

    Args:
        patterns: The files, which may be at addresses that Beam knows.
        settings: How they are scored. Workers must reach the run or the SavedModel.
        runner: What runs the pipelines.
        out: The folder to write, which must be new or empty.
        piece_bytes: The size of a piece in bytes.

    Returns:
        The number of texts, and their total.

    Raises:
        UserError: If `out` is not empty, a file cannot be read or encoded, or a pipeline fails.
    """
    runner.make_options()
    storage = BeamStorage()
    with use_storage(storage):
        out = out.rstrip("/")
        if [name for name in list_names(out) if not name.startswith(WORK_PREFIX)]:
            raise UserError(f"--out must be a new or empty folder. Received: {out}")
        files = [file for pattern in patterns for file in find_files([pattern])]
        described = [
            [describe_file(f), f.stored_size, storage.get_time(str(f.path))] for f in files
        ]
        made = [__version__, asdict(settings), described, piece_bytes]
        digest = hashlib.sha256(json.dumps(made, default=str).encode()).hexdigest()[:16]
        work = join_path(out, f"{WORK_PREFIX}{digest}")
        tasks = _make_tasks(files, settings, runner, work, piece_bytes)
        results = list(run_tasks(runner, work, ScoringStage(work, settings), tasks))
        total, n_texts = TextTotals(0.0, 0, None, 0), 0
        for result in results:
            score = TextTotals(**result["total"])
            total, n_texts = replace(total, level=score.level) + score, n_texts + result["n_texts"]
        for index, result in enumerate(results):
            name = f"scores-{index:05d}-of-{len(results):05d}.jsonl"
            move_file(result["path"], join_path(out, name))
        remove_folder(work)
        return n_texts, total


def write_total(out: str, line: str) -> None:
    """Writes the line of the total, the last one of all files in the order of their names."""
    write_file(join_path(out, TOTAL_NAME), f"{line}\n".encode())


def _make_tasks(
    files: Sequence[TextFile],
    settings: ScoringSettings,
    runner: Runner,
    work: str,
    piece_bytes: int,
) -> list[dict[str, Any]]:
    """Returns the pieces to score. A large file is divided where texts begin."""
    pieces = list(divide_files(files, piece_bytes, ranges=not settings.needs_whole_files))
    steps = [piece for piece in pieces if piece[0].stop is not None]
    stage = TextsStage(settings, piece_bytes)
    described = [{"files": [describe_file(file) for file in step]} for step in steps]
    found = iter(list(run_tasks(runner, work, stage, described)))
    tasks: list[dict[str, Any]] = []
    for is_divided, group in groupby(pieces, key=lambda piece: piece[0].stop is not None):
        if not is_divided:
            for piece in group:
                described_files = [describe_file(file) for file in piece]
                tasks.append({"files": described_files, "n_before": [0] * len(piece)})
            continue
        for _, ranges in groupby(group, key=lambda piece: piece[0].path):
            tasks += _join_steps([(piece[0], next(found)) for piece in ranges])
    return tasks


def _join_steps(steps: Sequence[tuple[TextFile, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Returns the ranges of a large file from the first text in a step to that in another."""
    begins, n_texts = [], 0
    for _, found in steps:
        if found["first"] is not None:
            begins.append((found["first"], n_texts))
        n_texts += found["n_texts"]
    file, size = steps[0][0], steps[-1][0].stop
    stops = [*(first for first, _ in begins[1:]), size]
    return [
        {
            "files": [describe_file(replace(file, start=first, stop=stop, continues=first > 0))],
            "n_before": [n_before],
        }
        for (first, n_before), stop in zip(begins, stops, strict=True)
    ]
