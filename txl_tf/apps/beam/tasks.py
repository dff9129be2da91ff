"""Tasks of a pipeline, whose results are files: what is done once is not done again.

A worker writes the result of a task as a file with a name of its own and renames it when it is
complete. A runner may therefore repeat a task, or run it twice at once: the results are equal, and
one of them is used.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import apache_beam as beam

from txl_tf.apps.beam.runner import Runner
from txl_tf.apps.beam.storage import (
    install_storage,
    list_names,
    name_once,
    read_file,
    remove_file,
    write_file,
)
from txl_tf.data.files import join_path
from txl_tf.errors import UserError

Task = Mapping[str, Any]  # anything that JSON can represent
ERROR = "error"
_N_READERS = 16


class Stage(Protocol):
    """Tasks of one kind; it can be pickled."""

    @property
    def name(self) -> str:
        """The beginning of the names of its results."""

    def setup(self) -> None:
        """Loads what the tasks need; called once in each thread of a worker."""

    def run(self, index: int, task: Task) -> Task:
        """Returns the result of a task.

        Raises:
            UserError: If the input is wrong, so that repeating the task would not help.
        """


def run_tasks(
    runner: Runner, folder: str, stage: Stage, tasks: Sequence[Task]
) -> Iterator[dict[str, Any]]:
    """Runs tasks that are not done yet, and yields the results of all.

    Args:
        runner: What runs them.
        folder: The folder of the results.
        stage: What the tasks do.
        tasks: The tasks; the same ones, in the same order, at every call with this folder.

    Yields:
        The results, in order.

    Raises:
        UserError: If a task fails. Of several errors of input, the first one is raised.
    """
    done = _find_results(folder, stage.name)
    missing = [index for index in range(len(tasks)) if index not in done]
    if missing:
        print(f"{stage.name}: {len(missing):,} tasks on {runner.name}")
        run_once(runner, folder, stage.name, {i: tasks[i] for i in missing}, _Run(folder, stage))
        done = _find_results(folder, stage.name)
    if len(done) < len(tasks):
        raise UserError(
            f"the pipeline ended, but {len(tasks) - len(done):,} results are missing in "
            f"`{folder}`, which all workers and this machine must reach"
        )
    for file, result in zip(done.values(), _read(folder, done.values()), strict=True):
        if ERROR in result:
            remove_file(join_path(folder, file))
            raise UserError(result[ERROR])
        yield result


def run_once(
    runner: Runner,
    folder: str,
    name: str,
    tasks: Mapping[int, Task],
    step: beam.PTransform | beam.DoFn,
) -> None:
    """Runs a pipeline whose elements are the numbers and the tasks, spread over the workers.

    They are read from a file: descriptions of many tasks do not fit into that of a pipeline.
    """
    path = name_once(folder, f"tasks-{name}", ".jsonl")
    lines = (json.dumps([index, task]) + "\n" for index, task in tasks.items())
    write_file(path, "".join(lines).encode("utf-8"))

    def build(pipeline: beam.Pipeline) -> None:
        spread = (
            pipeline
            | beam.Create([path])
            | "ReadTasks" >> beam.FlatMap(_read_tasks)
            | beam.Reshuffle()
        )
        _ = spread | name >> (beam.ParDo(step) if isinstance(step, beam.DoFn) else step)

    try:
        runner.run(build)
    finally:
        remove_file(path)


def write_result(folder: str, name: str, index: int, result: Task) -> None:
    """Writes the result of a task."""
    path = name_once(folder, f"{name}-{index:07d}", ".json")
    write_file(path, json.dumps(result).encode("utf-8"))


def read_results(folder: str, name: str) -> Iterator[dict[str, Any]]:
    """Yields the results of all tasks that are done, in the order of their numbers."""
    return _read(folder, _find_results(folder, name).values())


class _Run(beam.DoFn):
    """Runs a task and writes its result, or the reason why its input is wrong."""

    def __init__(self, folder: str, stage: Stage):
        self._folder = folder
        self._stage = stage

    def setup(self) -> None:
        install_storage()
        self._stage.setup()

    def process(self, element: tuple[int, Task]) -> None:
        index, task = element
        try:
            result = self._stage.run(index, task)
        except UserError as error:
            result = {ERROR: str(error)}
        write_result(self._folder, self._stage.name, index, result)


def _read_tasks(path: str) -> list[tuple[int, Task]]:
    install_storage()
    return [tuple(json.loads(line)) for line in read_file(path).splitlines()]


def _find_results(folder: str, name: str) -> dict[int, str]:
    """Returns the name of one result of each task that is done, by its number."""
    found: dict[int, str] = {}
    for file in list_names(folder):
        stem, _, rest = file.removesuffix(".json").rpartition("-")
        kind, _, index = stem.rpartition("-")
        if file.endswith(".json") and rest and kind == name and index.isdecimal():
            found.setdefault(int(index), file)
    return dict(sorted(found.items()))


def _read(folder: str, files: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields the content of results, of which the next ones are read in advance."""
    paths = [join_path(folder, file) for file in files]
    with ThreadPoolExecutor(_N_READERS) as pool:
        for start in range(0, len(paths), 4 * _N_READERS):
            yield from map(json.loads, pool.map(read_file, paths[start : start + 4 * _N_READERS]))
