"""Scoring a collection of texts with many workers."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

import apache_beam as beam
from apache_beam.utils.shared import Shared

from txl_tf.apps.beam.file_ranges import PIECE_BYTES, divide_files, find_range, resume_documents
from txl_tf.apps.beam.runner import Runner, create_work_folder, name_file
from txl_tf.apps.file_scores import FileScorer, ScoringSettings, load_model
from txl_tf.data.files import join_path, list_names, open_file
from txl_tf.data.text.text_files import TextFile, TextSource, find_files
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.scoring.text_report import JsonLines
from txl_tf.scoring.text_scores import TextTotals

Step = tuple[int, tuple[TextFile, ...]]  # number, and files as in `divide_files`


def score_with_workers(
    patterns: Sequence[str],
    settings: ScoringSettings,
    runner: Runner,
    out: str,
    *,
    piece_bytes: int = PIECE_BYTES,
) -> tuple[TextTotals, Vocabulary]:
    """Scores files, writes the scores as files of JSON lines, and prints the total.

    Workers must have access to the files, the folders and the model.

    Returns:
        The total, and the vocabulary of the model.
    """
    runner.make_options()
    # Errors in the model or the prefix are found here, not by all workers.
    vocabulary = FileScorer(settings, load_model(settings)).vocabulary
    # A killed pipeline may have left its folder of temporary files.
    if not all(name.startswith(".") for name in list_names(out)):
        raise UserError(f"--out must be a new or empty folder. Received: {out}")
    files = [file for pattern in patterns for file in find_files([pattern])]
    ranges = not settings.needs_whole_files
    steps = list(enumerate(divide_files(files, piece_bytes, ranges=ranges)))
    with create_work_folder(out) as work:

        def build(pipeline: beam.Pipeline) -> beam.PCollection:
            return pipeline | beam.Create(steps) | beam.ParDo(_ScoreStep(settings, work))

        total, n_texts = TextTotals(0.0, 0, vocabulary.level, 0), 0
        results = [result for result in sorted(runner.run(build, work)) if result[2]]
        n_before = 0
        for number, (index, path, n_scored, scored) in enumerate(results):
            total, n_texts = total + TextTotals(**scored), n_texts + n_scored
            n_before = n_before if steps[index][1][0].start else 0
            name = f"scores-{number:05d}-of-{len(results):05d}.jsonl"
            _copy_scores(path, join_path(out, name), n_before)
            n_before += n_scored
        line = JsonLines(settings.by, vocabulary).format_total(n_texts, total)
        # The last of all files, in the order of their names.
        with open_file(join_path(out, "total.jsonl"), "wb") as file:
            file.write(f"{line}\n".encode())
    print(line)
    return total, vocabulary


def _copy_scores(path: str, target: str, n_before: int) -> None:
    """Copies lines of scores, whose texts follow `n_before` texts of the same file."""
    with open_file(path) as source, open_file(target, "wb") as out:
        for line in source:
            if n_before:
                record = json.loads(line)
                record["number"] += n_before
                line = f"{json.dumps(record)}\n".encode()
            out.write(line)


def find_texts(step: TextFile, settings: ScoringSettings) -> TextFile:
    """Returns the range from the first text that begins in a step to the first one after it."""
    assert step.stop is not None
    start, stop = (_find_text(step, place, settings) for place in (step.start, step.stop))
    return replace(step, start=start, stop=stop, continues=start > 0)


def _find_text(file: TextFile, place: int, settings: ScoringSettings) -> int:
    """Returns the offset of the first text at or after a place; if none begins, the file size."""
    size = file.stored_size
    rest = find_range(replace(file, start=place, stop=size, continues=place > 0), size)
    finder = settings.make_finder()
    assert finder is not None
    resume_documents(finder, rest)
    offset = rest.start
    # Lines of bytes: whether they are UTF-8 is checked when they are encoded.
    for chunk in TextSource((rest,), "byte").iterate_chunks():
        if len(begins := finder.find(chunk)):
            return offset + int(begins[0])
        offset += len(chunk.text)
    return size


class _ScoreStep(beam.DoFn):
    """Scores a step; yields its number, the file of scores, the number of texts and their total.

    Texts are numbered from the beginning of the step.
    """

    def __init__(self, settings: ScoringSettings, work: str):
        self._settings = settings
        self._work = work
        self._shared = Shared()

    def setup(self) -> None:
        """Loads the model once in each process; each thread compiles its own steps."""
        settings = self._settings
        model = self._shared.acquire(lambda: load_model(settings), tag=settings.run)
        self._scorer = FileScorer(settings, model)
        self._report = JsonLines(settings.by, self._scorer.vocabulary)

    def process(self, step: Step) -> Iterator[tuple[int, str, int, dict[str, object]]]:
        index, files = step
        if files[0].stop is not None:
            texts = find_texts(files[0], self._settings)
            files = (texts,) if texts.size else ()
        total, n_texts = TextTotals(0.0, 0, self._scorer.vocabulary.level, 0), 0
        path = name_file(self._work)
        with open_file(path, "wb") as out:
            for name, score in self._scorer.score(files):
                total, n_texts = total + score, n_texts + 1
                out.write(f"{self._report.format_text(name, score)}\n".encode())
        yield index, path, n_texts, asdict(total)
