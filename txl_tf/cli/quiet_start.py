"""Imports TensorFlow without its messages about the machine.

Its C++ code reads `TF_CPP_MIN_LOG_LEVEL` late. Before that it writes messages about oneDNN and
missing GPUs to file descriptor 2, whatever the level. Programs filter that descriptor while
TensorFlow is imported, and only then. `import txl_tf` filters nothing, because a library should not
redirect the descriptor.
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

LEVEL_VARIABLE = "TF_CPP_MIN_LOG_LEVEL"
DEFAULT_LEVEL = "2"  # only errors
# Runs in a separate process, which also passes on lines that precede a crash.
_FILTER = """
import re, sys
dropped = re.compile("|".join(sys.argv[1:]).encode())
for line in sys.stdin.buffer:
    if not dropped.match(line):
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
"""


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Hides messages about the machine if TensorFlow is first imported in this context.

    `TF_CPP_MIN_LOG_LEVEL` decides what is hidden; unless the user has set it, it is 2. Errors pass,
    and so does every line that does not have the form of a message. With 0 nothing is hidden.
    """
    if "tensorflow" in sys.modules:
        yield
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


def list_dropped(level: str) -> list[str]:
    """Returns the patterns of the lines that are hidden at a level of `TF_CPP_MIN_LOG_LEVEL`.

    >>> list_dropped("0")
    []
    """
    if level not in ("1", "2", "3"):
        return []
    kinds = "I" if level == "1" else "IW"
    return [
        "WARNING: All log messages before absl::InitializeLog.* are written to STDERR",
        rf"[{kinds}]\d{{4}} \d\d:\d\d:[\d.]+ +\d+ \S+:\d+\] ",
        # Marked as an error, but means only that the machine has no GPU driver.
        r"E\d{4} .* failed call to cuInit: .*\(303\)",
    ]


class _Finder(importlib.abc.MetaPathFinder):
    """Makes `_Loader` import TensorFlow."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec, spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Imports TensorFlow and lists its devices, with its messages filtered."""

    def __init__(self, spec: importlib.machinery.ModuleSpec, loader: importlib.abc.Loader):
        self._spec = spec
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._loader  # as without this class
        level = os.environ.setdefault(LEVEL_VARIABLE, DEFAULT_LEVEL)
        with filter_lines(list_dropped(level)):
            self._loader.exec_module(module)
            # Messages about GPUs come when devices are listed. The program will see errors again.
            with contextlib.suppress(Exception):
                module.config.list_physical_devices()


@contextlib.contextmanager
def filter_lines(dropped: Sequence[str]) -> Iterator[None]:
    """Removes lines that match any of the patterns from file descriptor 2."""
    if not dropped:
        yield
        return
    try:
        saved = os.dup(2)
    except OSError:  # there is no standard error
        yield
        return
    try:
        helper = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _FILTER, *dropped],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must not end it
        )
    except OSError:  # no process can be started; messages are better than a failure
        os.close(saved)
        yield
        return
    assert helper.stdin is not None
    sys.stderr.flush()
    os.dup2(helper.stdin.fileno(), 2)
    helper.stdin.close()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a child may still hold the pipe
            helper.wait(timeout=5)
