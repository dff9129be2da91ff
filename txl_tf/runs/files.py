"""The small files of a run, local or remote, with readable errors."""

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from txl_tf.data.files import access_path, check_folder, is_remote
from txl_tf.data.temporary_folders import work_aside
from txl_tf.errors import UserError, explain


def list_names(folder: str) -> list[str]:
    """Returns the names in a folder; empty if there is no such folder.

    Raises:
        UserError: If it cannot be read.
    """
    with access_path(folder):
        if not is_remote(folder):
            return os.listdir(folder) if os.path.isdir(folder) else []
        import tensorflow as tf

        return tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []


def exists(path: str) -> bool:
    """Returns whether a file or folder exists.

    Raises:
        UserError: If the storage does not answer.
    """
    with access_path(path):
        if not is_remote(path):
            return os.path.exists(path)
        import tensorflow as tf

        return tf.io.gfile.exists(path)


def make_folder(folder: str) -> None:
    """Makes a folder, with its parents, if there is none.

    Raises:
        UserError: If it cannot be made.
    """
    with access_path(folder):
        if not is_remote(folder):
            os.makedirs(folder, exist_ok=True)
            return
        import tensorflow as tf

        tf.io.gfile.makedirs(folder)


def _open(path: str, mode: str) -> AbstractContextManager[IO[str]]:
    """Opens a text file that may be remote."""
    if not is_remote(path):
        return open(path, mode, encoding="utf-8", newline="\n")
    import tensorflow as tf

    return tf.io.gfile.GFile(path, mode)


def read_json(path: str) -> Any:
    """Returns the content of a JSON file.

    Raises:
        UserError: If it cannot be read or is not valid JSON.
    """
    try:
        with access_path(path), _open(path, "r") as file:
            return json.loads(file.read())
    except (ValueError, RecursionError) as error:
        raise UserError(f"`{path}` is not valid JSON: {error}") from error


def write_text(path: str, text: str) -> None:
    """Writes a file under another name and renames it, so that the file is always complete.

    Raises:
        UserError: If it cannot be written. An older file is left unchanged.
    """
    with access_path(path):
        with _open(path + ".writing", "w") as file:
            file.write(text)
        if not is_remote(path):
            os.replace(path + ".writing", path)
            return
        import tensorflow as tf

        tf.io.gfile.rename(path + ".writing", path, overwrite=True)


def write_json(path: str, content: dict[str, Any]) -> None:
    """Writes a JSON file with `write_text`."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json_lines(path: str) -> list[Any]:
    """Returns the objects of a file with one on each line; a line that is cut off is left out.

    Raises:
        UserError: If the file cannot be read.
    """
    with access_path(path), _open(path, "r") as file:
        lines = file.read().splitlines()
    objects = []
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError, RecursionError):
            objects.append(json.loads(line))
    return objects


def append_json_line(path: str, content: dict[str, Any]) -> None:
    """Appends an object to a file of JSON lines.

    Raises:
        UserError: If it cannot be written.
    """
    with access_path(path), _open(path, "a") as file:
        file.write(json.dumps(content) + "\n")


def drop_lines_after(path: str, step: int) -> list[dict[str, Any]]:
    """Removes the JSON lines of later steps, and a line that was truncated by a killed run.

    Returns:
        The objects that are kept; empty if there is no such file.

    Raises:
        UserError: If the file cannot be read or written.
    """
    if not exists(path):
        return []
    with access_path(path), _open(path, "r") as file:
        text = file.read()
    kept = [line + "\n" for line in text.splitlines() if _is_kept(line, step)]
    if "".join(kept) != text:
        write_text(path, "".join(kept))
    return [json.loads(line) for line in kept]


def _is_kept(line: str, step: int) -> bool:
    try:
        return json.loads(line)["step"] <= step
    except (json.JSONDecodeError, KeyError, TypeError, RecursionError):
        return False  # truncated when the run was killed


@contextlib.contextmanager
def explain_full_memory(advice: str) -> Iterator[None]:
    """Converts tensorflow's out-of-memory error to a `UserError` with advice."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise UserError(f"the device has too little memory {advice} ({explain(error)})") from error


def check_new_folder(out: str) -> None:
    """Checks that `write_aside` can create a folder.

    Raises:
        UserError: If it is not empty or not on this machine.
    """
    if not out or is_remote(out):
        raise UserError(f"`{out}` must be a folder on this machine: copy it from there")
    if (os.path.isdir(out) and os.listdir(out)) or os.path.isfile(out):
        raise UserError(f"`{out}` is not empty: choose another folder")
    check_folder(os.path.realpath(out))  # a link may point to a folder that does not exist yet


@contextlib.contextmanager
def write_aside(out: str) -> Iterator[str]:
    """Yields a new folder beside a local folder `out` and renames it to `out` at the end.

    Raises:
        UserError: If `out` is not empty or not on this machine.
    """
    check_new_folder(out)
    out = os.path.realpath(out)  # a link is kept, and its target is written
    parent, name = os.path.split(out)
    with work_aside(Path(parent), f".{name}.writing-") as aside:
        yield str(aside)
        os.chmod(aside, 0o777 & ~_read_umask())  # the temporary folder is private
        os.replace(aside, out)


def _read_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
