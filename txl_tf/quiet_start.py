"""Imports TensorFlow without its messages about the machine, and finds the backend of Keras.

TensorFlow's C++ code writes messages about oneDNN and missing GPUs to file descriptor 2 before it
reads `TF_CPP_MIN_LOG_LEVEL`. They are filtered while TensorFlow is imported.
"""

import contextlib
import faulthandler
import importlib
import importlib.util
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from txl_tf.errors import UserError

_DESCRIPTOR_LOCK = threading.RLock()  # two threads that swap descriptor 2 would lose it
_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_MESSAGES = (
    r"WARNING: All log messages before absl::InitializeLog.* are written to STDERR"
    r"|[IW]\d{4} \d\d:\d\d:[\d.]+ +\d+ \S+:\d+\] "
    # Marked as an error, but means only that the machine has no GPU driver.
    r"|E\d{4} .* failed call to cuInit: .*\(303\)"
)


@contextlib.contextmanager
def quiet_start(*, notice: bool = False) -> Iterator[None]:
    """Hides TensorFlow's messages about the machine if it is first imported in this context.

    Errors are shown. With `TF_CPP_MIN_LOG_LEVEL=0` in the environment, nothing is hidden. With
    `notice`, a line on a terminal says that TensorFlow is being loaded, which takes seconds.
    """
    if "tensorflow" in sys.modules or os.environ.get(_LEVEL) == "0":
        yield
        return
    finder = _Finder(notice and sys.stderr.isatty())
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


def import_name(package: str, places: Mapping[str, str], name: str) -> Any:
    """Returns a name of a package from the module that has it; for its `__getattr__`.

    So modules are imported when they are first used: programs read their flags before TensorFlow.

    Raises:
        AttributeError: If `places` has no such name.
    """
    if name not in places:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    with quiet_start():
        return getattr(importlib.import_module(places[name]), name)


def find_backend() -> tuple[str, str]:
    """Returns the backend of Keras, and what names it; reads what Keras reads when it is imported.

    Keras itself cannot be imported if the package of its backend is missing.
    """
    if name := os.environ.get("KERAS_BACKEND"):
        return name, "the environment variable KERAS_BACKEND"
    home = os.path.expanduser("~")
    home = os.path.join(home if os.access(home, os.W_OK) else "/tmp", ".keras")
    path = os.path.join(os.path.expanduser(os.environ.get("KERAS_HOME", home)), "keras.json")
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        content = json.load(file)
        if isinstance(content, dict) and isinstance(content.get("backend"), str):
            return content["backend"], f"`{path}`"
    return "tensorflow", "the default"


def check_backend(*others: str) -> None:
    """Checks that Keras computes with TensorFlow, or another backend, before either is imported.

    Raises:
        UserError: If it has another backend. The message says which names work with it.
    """
    name, source = find_backend()
    if name not in ("tensorflow", *others):
        works = "presets, configs and data"
        if name == "jax":
            works = f"CausalLM, models, layers, {works}"
        raise UserError(
            f"the backend of Keras must be {' or '.join(['tensorflow', *others])}. "
            f"Received: {name}, from {source}. With {name}, only {works} can be used"
        )


class _Finder:
    """Finds TensorFlow, and filters the messages of its import."""

    def __init__(self, notice: bool):
        self._notice = notice

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def execute_quietly(module: Any) -> None:
            if self._notice:
                print("Loading TensorFlow ...", file=sys.stderr)
            os.environ.setdefault(_LEVEL, "2")  # JAX sets 1 for itself and its subprocesses
            with drop_lines(_MESSAGES):
                execute(module)
                # Messages about GPUs come when devices are listed. Later calls repeat errors.
                with contextlib.suppress(Exception):
                    module.config.list_physical_devices()

        spec.loader.exec_module = execute_quietly
        return spec


@contextlib.contextmanager
def drop_lines(pattern: str) -> Iterator[None]:
    """Holds back what is written to file descriptor 2, and drops lines that match a pattern.

    If the process crashes meanwhile, only Python's traceback is shown.
    """
    try:
        os.fstat(2)
    except OSError:  # there is no standard error
        yield
        return
    with _DESCRIPTOR_LOCK, tempfile.TemporaryFile() as held:
        saved = os.dup(2)
        reports_crashes = not faulthandler.is_enabled()
        sys.stderr.flush()
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
            os.write(2, b"".join(line for line in held if not re.match(pattern.encode(), line)))
