"""Checks the device of this machine: correct numbers, exact resuming, all precisions, speed.

txl check
txl check --only numbers,resume --json > check.json

It needs no data. It takes two minutes on a CPU, and a few more on an accelerator, whose speed it
measures with larger models. With KERAS_BACKEND=jax it runs the checks that support JAX. The status
is 1 if a check fails.
"""

import collections
import contextlib
import functools
import itertools
import json
import math
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from absl import flags

from txl_tf.errors import explain
from txl_tf.programs.checks import numbers, speed, training, use
from txl_tf.programs.checks.backend import CheckFailedError, Figures, SkippedError, is_jax
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import EXIT_FAILED, program
from txl_tf.quiet_start import check_backend, find_backend
from txl_tf.version import __version__


class Check(NamedTuple):
    """A check.

    Args:
        run: The function, which returns figures, or raises `CheckFailedError` or `SkippedError`.
        seconds: Its time limit.
        runs_on_jax: Whether it also runs on JAX.
        is_apart: Whether it needs a separate process, because it partitions the device.
    """

    run: Callable[[], Figures]
    seconds: float
    runs_on_jax: bool = False
    is_apart: bool = False

    @property
    def name(self) -> str:
        """Its name for `--only`."""
        return self.run.__name__.removeprefix("check_")


class Result(NamedTuple):
    """The result of a check."""

    name: str
    status: str  # PASS, FAIL or SKIPPED
    seconds: float
    figures: Figures
    message: str = ""
    details: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns a dict for JSON; figures that are not finite become strings."""
        figures = {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in self.figures.items()
        }
        return self._replace(figures=figures)._asdict()

    def describe(self) -> str:
        """Returns the line to print for the check."""
        figures = ", ".join(f"{name} {_format(value)}" for name, value in self.figures.items())
        text = ": ".join(part for part in (self.message, figures) if part)
        return f"{self.status:<8} {self.name:<16} {text} ({self.seconds:.0f} s)"


def _format(value: Any) -> str:
    """Returns a figure in a readable form.

    >>> _format(0.00001234), _format(12345.6), _format("H200")
    ('1.2e-05', '12,346', 'H200')
    """
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2g}"


CHECKS = [
    Check(numbers.check_device, 60, runs_on_jax=True),
    Check(numbers.check_products, 120, runs_on_jax=True),
    Check(numbers.check_numbers, 180, runs_on_jax=True),
    Check(numbers.check_tf32, 180, runs_on_jax=True),
    Check(numbers.check_memory, 120, runs_on_jax=True),
    Check(training.check_training, 120, runs_on_jax=True),
    Check(training.check_precisions, 180, runs_on_jax=True),
    Check(training.check_jit, 180),
    Check(use.check_use, 180),
    Check(training.check_resume, 300, runs_on_jax=True),
    Check(training.check_replicas, 120, is_apart=True),
    Check(speed.check_speed_wt103, 240, runs_on_jax=True),
    Check(speed.check_speed_enwik8, 240, runs_on_jax=True),
    Check(speed.check_speed_generation, 120),
]


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    names = [check.name for check in CHECKS]
    define("only", list, [], "Checks to run. [default: all]", choices=names)
    text = "Factor by which the time limits of the checks are multiplied."
    define("patience", float, 1.0, text, lower_bound=0)
    define("json", bool, False, "Print one JSON object at the end instead of the lines.")
    return options


@program(__doc__, define_flags)
def main(options: flags.FlagValues) -> int:
    """Runs the checks, prints a line for each, and returns 1 if one of them fails."""
    check_backend("jax")
    checks = [check for check in CHECKS if not options.only or check.name in options.only]
    results = []
    for result in run_checks(checks, options.patience):
        results.append(result)
        if not options.json:
            print(result.describe(), flush=True)
    if options.json:
        backend, _ = find_backend()
        report = {"version": __version__, "backend": backend}
        print(json.dumps(report | {"checks": [result.to_json() for result in results]}))
    failed = any(result.status == "FAIL" for result in results)
    return EXIT_FAILED if failed else 0


def run_checks(checks: Sequence[Check], patience: float = 1.0) -> Iterator[Result]:
    """Runs checks in another process, one after the other, and yields their results.

    After a check crashes or exceeds its time limit, a new process runs the remaining ones.
    """
    waiting = collections.deque(checks)
    while waiting:
        group = list(itertools.takewhile(lambda check: not check.is_apart, waiting))
        group = group or [waiting[0]]
        with _start_process(group) as (process, receiver, log):
            for check in group:
                waiting.popleft()
                result = _receive(process, receiver, check, patience, log)
                yield result
                if not process.is_alive():
                    break


@contextlib.contextmanager
def _start_process(checks: Sequence[Check]) -> Iterator[tuple[Any, Connection, str]]:
    """Starts a process that runs checks; yields it, its results and the path of its output."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "output")
        open(log, "wb").close()
        process = context.Process(target=_run_process, args=(checks, sender, log), daemon=True)
        process.start()
        sender.close()
        try:
            yield process, receiver, log
        finally:
            _kill(process)


def _receive(process: Any, receiver: Connection, check: Check, patience: float, log: str) -> Result:
    """Returns the result of a check; kills its process at the time limit."""
    start, limit = time.monotonic(), patience * check.seconds
    message = f"it took more than {limit:g} s"
    if receiver.poll(limit):
        with contextlib.suppress(EOFError):
            result: Result = receiver.recv()
            return result
        process.join()
        message = f"its process ended with status {process.exitcode}"
    _kill(process)
    with open(log, encoding="utf-8", errors="replace") as file:
        output = file.read()[-4000:]
    return Result(check.name, "FAIL", time.monotonic() - start, {}, message, output)


def _kill(process: Any) -> None:
    """Kills a process and all processes that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # it may not have its group yet
    process.join()


def _run_process(checks: Sequence[Check], sender: Connection, log: str) -> None:
    """Runs checks in this process, whose output goes to a file, and sends their results."""
    os.setsid()  # a group of its own, which `_kill` ends
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if not is_jax():
        import tensorflow as tf

        # `resume` starts other processes, which also need memory.
        for device in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(device, True)
    for check in checks:
        sender.send(run_check(check))


def run_check(check: Check) -> Result:
    """Runs a check in this process."""
    start = time.monotonic()
    status, figures, message, details = "PASS", {}, "", ""
    try:
        if is_jax() and not check.runs_on_jax:
            raise SkippedError("it needs TensorFlow")
        figures = check.run()
    except SkippedError as error:
        status, message = "SKIPPED", str(error)
    except CheckFailedError as error:
        status, message, figures = "FAIL", str(error), error.figures
    except Exception as error:
        status, message, details = "FAIL", explain(error), traceback.format_exc()
    return Result(check.name, status, time.monotonic() - start, figures, message, details)
