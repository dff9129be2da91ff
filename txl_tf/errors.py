"""Errors that end a program with one line instead of a traceback, and functions that raise them."""

import contextlib
import math
import os
import re
from collections.abc import Iterator
from numbers import Integral
from typing import Any


class UserError(ValueError):
    """Invalid input; the message says what was expected and what was received."""


class StorageError(UserError, OSError):
    """A storage failure: an `OSError` whose message is written for the user."""


class StoppedError(Exception):
    """Raised when a run was asked to stop and has saved its state, if it has any.

    The run continues when it is started again.

    Args:
        message: The reason, and the step of the checkpoint if one was saved.
        status: The exit status of the program.
    """

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


def explain(error: BaseException) -> str:
    """Returns the reason for a system or library error, on one line.

    For an `OSError`, this is its text without number and path; for a `UnicodeDecodeError`, the
    invalid byte; otherwise, the first line of the message without TensorFlow's internal notes.

    >>> explain(ValueError("{{function_node f}} disk full [Op:SaveV2]"))
    'disk full'
    >>> explain(ValueError("run/ckpt-7_temp/part-0.tempstate12; No space left on device"))
    'No space left on device'
    >>> explain(FileNotFoundError(2, "No such file or directory", "a.txt"))
    'No such file or directory'
    """
    if isinstance(error, UnicodeDecodeError):
        byte = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
        return f"{byte} ({error.reason}); {convert_encoding()}"
    message = getattr(error, "strerror", None) or str(error)
    first, *_ = str(message).splitlines() or [""]
    notes = r"\{\{.*?\}\}|\[Op:.*?\]|^.*_temp\b.*; "
    return re.sub(notes, "", first).strip() or type(error).__name__


def convert_encoding(encoding: str = "LATIN1") -> str:
    """Returns a hint on how to convert a text to UTF-8, for error messages."""
    return f"if it is in {encoding}, iconv -f {encoding} -t UTF-8 converts it"


def check_integer(name: str, value: Any, lowest: int, highest: int | None = None) -> int:
    """Returns an argument, such as an integer of NumPy, as an `int`, which JSON can hold.

    Raises:
        UserError: If it is not an integer within inclusive bounds.

    >>> check_integer("batch_size", 3, 1)
    3
    """
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if is_integer and lowest <= int(value) <= (math.inf if highest is None else highest):
        return int(value)
    bounds = f">= {lowest}" if highest is None else f"from {lowest} to {highest:,}"
    raise UserError(f"`{name}` must be an integer {bounds}. Received: {name}={value!r}")


def name_install_command(extra: str) -> str:
    """Returns the command that installs an optional extra, for a checkout or an installed wheel.

    >>> name_install_command("hub")
    "pip install -e '.[hub]'"
    """
    checkout = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    is_checkout = os.path.isfile(os.path.join(checkout, "pyproject.toml"))
    return f"pip install -e '.[{extra}]'" if is_checkout else f"pip install 'txl_tf[{extra}]'"


@contextlib.contextmanager
def require_extra(extra: str, feature: str) -> Iterator[None]:
    """Turns the import error of a missing package into a `UserError` that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package == "txl_tf":
            raise
        raise UserError(
            f"{feature} needs the package {package}: {name_install_command(extra)}"
        ) from error


@contextlib.contextmanager
def explain_errors(
    fault: str, *kinds: type[Exception], raised: type[UserError] = UserError
) -> Iterator[None]:
    """Re-raises errors of some kinds as a `UserError` that names the fault and its reason.

    A `UserError` passes unchanged unless `UserError` itself is one of these kinds.
    """
    try:
        yield
    except kinds as error:
        if isinstance(error, UserError) and UserError not in kinds:
            raise
        raise raised(f"{fault}: {explain(error)}") from error
