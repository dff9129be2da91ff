"""Imports TensorFlow without its messages about the machine.

Its C++ code reads `TF_CPP_MIN_LOG_LEVEL` late. Before that it writes messages about oneDNN and
missing GPUs to file descriptor 2, whatever the level. What is written there while TensorFlow is
imported is held back, and passed on without these messages.
"""

import contextlib
import faulthandler
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from types import ModuleType

LEVEL_VARIABLE = "TF_CPP_MIN_LOG_LEVEL"
DEFAULT_LEVEL = "2"  # only errors


@contextlib.contextmanager
def quiet_start(*, notice: bool = False) -> Iterator[None]:
    """Hides messages about the machine if TensorFlow is first imported in this context.

    `TF_CPP_MIN_LOG_LEVEL` decides what is hidden; unless the user has set it, it is 2. Errors pass,
    and so does every line that does not have the form of a message. With 0 nothing is hidden.

    Args:
        notice: Whether to say on a terminal that TensorFlow is being loaded, which takes seconds.
    """
    if "tensorflow" in sys.modules:
        yield
        return
    finder = _Finder(notice and sys.stderr.isatty())
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _Finder(importlib.abc.MetaPathFinder):
    """Makes `_Loader` import TensorFlow."""

    def __init__(self, notice: bool):
        self._notice = notice

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec, spec.loader, self._notice)
        return spec


class _Loader(importlib.abc.Loader):
    """Imports TensorFlow and lists its devices, with its messages filtered."""

    def __init__(
        self, spec: importlib.machinery.ModuleSpec, loader: importlib.abc.Loader, notice: bool
    ):
        self._spec = spec
        self._loader = loader
        self._notice = notice

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._loader  # as without this class
        level = os.environ.setdefault(LEVEL_VARIABLE, DEFAULT_LEVEL)
        if self._notice:
            print("Loading TensorFlow ...", file=sys.stderr)
        with filter_lines(list_dropped(level)):
            self._loader.exec_module(module)
            # Messages about GPUs come when devices are listed. The program will see errors again.
            with contextlib.suppress(Exception):
                module.config.list_physical_devices()


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


@contextlib.contextmanager
def filter_lines(dropped: Sequence[str]) -> Iterator[None]:
    """Holds back what is written to file descriptor 2, and drops lines that match a pattern.

    If the process crashes meanwhile, only Python's traceback is shown.
    """
    if not dropped:
        yield
        return
    try:
        saved = os.dup(2)
    except OSError:  # there is no standard error
        yield
        return
    pattern = re.compile("|".join(dropped).encode())
    reports_crashes = not faulthandler.is_enabled()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        if reports_crashes:
            faulthandler.enable(saved)
        try:
            yield
        finally:
            if reports_crashes:
                faulthandler.disable()
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            os.write(2, b"".join(line for line in held if not pattern.match(line)))
