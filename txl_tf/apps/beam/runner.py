"""Runs a pipeline on a runner, and explains in one line why it failed."""

import contextlib
import io
import json
import logging
import os
import re
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from txl_tf.data.files import (
    exists,
    is_remote,
    join_path,
    make_folder,
    move_file,
    open_file,
    remove_folder,
)
from txl_tf.data.temporary_folders import work_aside
from txl_tf.errors import UserError

LOCAL = "DirectRunner"
_PREFIX = ".pipeline-"  # of the folder for the files of workers
_ERROR = re.compile(r"([\w.]+(?:Error|Exception|Interrupt))\b(?:: )?(.*?)(?: \[while running .*)?$")


@dataclass(frozen=True)
class Runner:
    """A Beam runner and its options, each NAME=VALUE or NAME, without dashes."""

    name: str = LOCAL
    options: tuple[str, ...] = ()

    def make_options(self) -> PipelineOptions:
        """Returns the options of a pipeline; raises `UserError` if Beam does not accept one."""
        texts = [f"--{option.lstrip('-')}" for option in self.options]
        more: dict[str, Any] = {"runner": self.name}
        if self.name == LOCAL:
            # With this option, pipelines do not run on Prism, a program that Beam downloads.
            more |= {"allow_unsafe_triggers": True, "default_sdk_harness_log_level": "CRITICAL"}
            known = PipelineOptions([]).get_all_options()
            names = [option.lstrip("-").partition("=")[0] for option in self.options]
            if unknown := [name for name in names if name.removeprefix("no_") not in known]:
                raise UserError(f"--beam_options: {LOCAL} has no option {unknown[0]}")
        refused = io.StringIO()
        try:
            with contextlib.redirect_stderr(refused):
                options = PipelineOptions(texts, **more)
                options.get_all_options()  # it parses them
        except SystemExit as error:
            reason = refused.getvalue().strip().splitlines()[-1].partition("error: ")[2]
            raise UserError(f"--beam_options: {reason}") from error
        return options

    def run(self, build: Callable[[beam.Pipeline], beam.PCollection], folder: str) -> Iterator[Any]:
        """Runs a pipeline until it ends, and returns its results in any order.

        `build` adds the steps and returns the results, which must be representable as JSON. The
        workers write them to the folder.
        """
        path = name_file(folder)
        options = self.make_options()
        with _silence(), self._explain_errors(), beam.Pipeline(options=options) as pipeline:
            results = build(pipeline) | "Describe" >> beam.Map(lambda x: (None, json.dumps(x)))
            _ = results | beam.GroupByKey() | "Write" >> beam.Map(_write_lines, path)
        return _read_lines(path)

    @contextlib.contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Re-raises errors of a pipeline with their reason, and a worker's `UserError` as such."""
        try:
            yield
        except Exception as error:
            kind, reason = find_reason("".join(traceback.format_exception_only(error)))
            if kind.startswith("txl_tf."):
                raise UserError(reason) from error
            reason = f"{kind}: {reason}" if kind and reason else kind or reason
            raise UserError(f"the pipeline failed on {self.name}: {reason}") from error


def find_reason(text: str) -> tuple[str, str]:
    r"""Returns the class and message of an error in a worker, whose traceback Beam reports.

    >>> find_reason("RuntimeError: Traceback:\n  File 'a.py'\nOSError: full [while running 'x']")
    ('OSError', 'full')
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [found for line in lines if (found := _ERROR.match(line))]
    return (errors[-1][1], errors[-1][2]) if errors else ("", (lines or [""])[-1])


@contextlib.contextmanager
def create_work_folder(parent: str) -> Iterator[str]:
    """Yields the path of a new folder for the files of workers, and removes it at the end."""
    if not is_remote(parent):
        with work_aside(Path(parent), _PREFIX) as local:
            yield str(local)
        return
    folder = join_path(parent, f"{_PREFIX}{uuid.uuid4().hex}")
    make_folder(folder)
    try:
        yield folder
    finally:
        remove_folder(folder)


def name_file(folder: str) -> str:
    """Returns a new path, so that a worker that repeats a step writes another file."""
    return join_path(folder, uuid.uuid4().hex)


def _write_lines(group: tuple[None, Iterable[str]], path: str) -> None:
    """Writes the file of all results, in one worker; its last attempt replaces earlier ones."""
    draft = f"{path}.{uuid.uuid4().hex}"
    with open_file(draft, "wb") as file:
        for line in group[1]:
            file.write(f"{line}\n".encode())
    move_file(draft, path)


def _read_lines(path: str) -> Iterator[Any]:
    if exists(path):  # there were results
        with open_file(path) as file:
            yield from map(json.loads, file)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Silences Beam and the TensorFlow of local workers, whose errors arrive as exceptions."""
    logger, name = logging.getLogger("apache_beam"), "TF_CPP_MIN_LOG_LEVEL"
    level, cpp_level = logger.level, os.environ.get(name)
    logger.setLevel(logging.CRITICAL)
    os.environ.setdefault(name, "2")
    try:
        yield
    finally:
        logger.setLevel(level)
        if cpp_level is None:
            del os.environ[name]
