"""Starts a pipeline on a runner, and explains in one line why one failed."""

import contextlib
import io
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions

from txl_tf.errors import UserError

LOCAL = "DirectRunner"
_KEPT = "What is done is kept; the same command goes on from there."
# The thread in which Beam's local runner waits for the process of a worker.
_WORKER_THREAD = "run_worker"


@dataclass(frozen=True)
class Runner:
    """What runs pipelines.

    Args:
        name: The name of a Beam runner, such as "DirectRunner".
        options: Its options, each NAME=VALUE or NAME, without dashes.
    """

    name: str = LOCAL
    options: tuple[str, ...] = ()

    def make_options(self) -> PipelineOptions:
        """Returns the options of a pipeline.

        Raises:
            UserError: If Beam refuses one, or the local runner does not know it.
        """
        texts = [f"--{option.lstrip('-')}" for option in self.options]
        more: dict[str, Any] = {"runner": self.name}
        if self.name == LOCAL:
            # Pipelines with this option are not given to Prism, a program that Beam downloads.
            more |= {"allow_unsafe_triggers": True, "default_sdk_harness_log_level": "ERROR"}
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

    def run(self, build: Callable[[beam.Pipeline], object]) -> None:
        """Runs a pipeline to its end.

        Args:
            build: Adds the steps to the pipeline.

        Raises:
            UserError: If the pipeline fails.
        """
        options = self.make_options()
        with _watch_workers(is_local=self.name == LOCAL) as dead:
            try:
                pipeline = beam.Pipeline(options=options)
                build(pipeline)
                pipeline.run().wait_until_finish()
            except KeyboardInterrupt as error:
                if not dead:
                    raise
                raise UserError(f"a worker died: {dead[0]}. {_KEPT}") from error
            except Exception as error:
                if dead:
                    raise UserError(f"a worker died: {dead[0]}. {_KEPT}") from error
                reason = explain_failure(str(error)) or type(error).__name__
                raise UserError(f"the pipeline failed on {self.name}: {reason}. {_KEPT}") from error


def explain_failure(text: str) -> str:
    r"""Returns the reason in the text of Beam's error, which contains the traceback of a worker.

    >>> explain_failure("Traceback:\n  File 'a.py'\nOSError: disk full [while running 'x']")
    'OSError: disk full'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    line = (errors or lines or [""])[-1]
    return re.sub(r" \[while running .*", "", line).rstrip(".")


@contextlib.contextmanager
def _watch_workers(*, is_local: bool) -> Iterator[Sequence[str]]:
    """Ends a local pipeline when the process of a worker ends; Beam 2.77 would wait forever.

    Args:
        is_local: Whether Beam's local runner is used; nothing is done for others.

    Yields:
        The reasons, which are known when the pipeline has been interrupted.
    """
    if not is_local:
        yield ()
        return
    dead: list[str] = []
    before, logger = threading.excepthook, logging.getLogger("apache_beam")
    level, cpp_level = logger.level, os.environ.get("TF_CPP_MIN_LOG_LEVEL")

    def notice(failure: Any) -> None:
        if failure.thread is None or failure.thread.name != _WORKER_THREAD:
            # The connections to a worker that is gone break, too.
            if not isinstance(failure.exc_value, grpc.RpcError):
                before(failure)
            return
        dead.append(str(failure.exc_value))
        if threading.current_thread() is not threading.main_thread():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.excepthook = notice
    logger.setLevel(logging.CRITICAL)  # the error itself comes as an exception
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # for the processes of workers
    try:
        yield dead
    finally:
        threading.excepthook = before
        logger.setLevel(level)
        if cpp_level is None:
            os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
