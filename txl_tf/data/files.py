"""File operations on local paths, and on addresses that TensorFlow can read and write."""

import contextlib
import hashlib
import io
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from txl_tf.errors import StorageError, UserError, explain, explain_errors

# When to report that a storage does not answer, and when to give up. TensorFlow itself would retry
# for up to an hour, waiting two minutes for each connection.
NOTICE_SECONDS, PATIENCE_SECONDS = 5.0, 60.0
_answered: set[str] = set()  # the storages that have answered, such as "gs://bucket"


def join_path(folder: str, file: str) -> str:
    """Returns the path of a file in a folder, which may be remote."""
    return f"{folder.rstrip('/')}/{file}"


def is_remote(path: str) -> bool:
    """Returns whether a path is a remote address, such as "gs://bucket/folder"."""
    return "://" in path


def check_address(path: str) -> None:
    """Checks that TensorFlow supports an address and that its storage answers, once per process."""
    if not is_remote(path):
        return
    scheme, _, rest = path.partition("://")
    root = f"{scheme}://{rest.partition('/')[0]}"
    if root in _answered:
        return
    if scheme == "hf":
        raise UserError(
            f"`{path}` is on the Hugging Face Hub: make a run folder of the model first, with "
            'txl_tf.load("hf://user/model").save("FOLDER")'
        )
    known = sorted(filter(None, _import_gfile().get_registered_schemes()))
    if scheme not in known:
        names = ", ".join(f"{name}://" for name in known)
        raise UserError(
            f"`{path}` must be a local path or an address that TensorFlow supports: {names}. "
            f"Received: {scheme}://"
        )
    _ask_storage(path, root)
    _answered.add(root)


def _ask_storage(path: str, root: str) -> None:
    """Asks the storage at `root` whether a path exists, and waits a limited time for an answer."""
    import tensorflow as tf

    errors: list[tf.errors.OpError] = []

    def ask() -> None:
        try:
            tf.io.gfile.exists(path)
        except tf.errors.OpError as error:
            errors.append(error)

    # In a thread, because the call has no time limit and cannot be interrupted.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(NOTICE_SECONDS)
    if thread.is_alive():
        print(
            f"{root} has not answered yet; waiting up to {PATIENCE_SECONDS:.0f} seconds",
            file=sys.stderr,
        )
        thread.join(PATIENCE_SECONDS - NOTICE_SECONDS)
    if thread.is_alive():
        raise UserError(f"`{path}`: {root} did not answer within {PATIENCE_SECONDS:.0f} seconds")
    if errors:
        raise UserError(f"`{path}`: {explain(errors[0])}") from errors[0]


@contextlib.contextmanager
def access_path(path: str) -> Iterator[None]:
    """Checks that a storage answers, and re-raises errors of access as a `StorageError`."""
    check_address(path)
    kinds: tuple[type[Exception], ...] = (OSError,)
    if is_remote(path) or "tensorflow" in sys.modules:  # local files need no TensorFlow
        import tensorflow as tf

        kinds = (OSError, tf.errors.OpError)
    with explain_errors(f"`{path}`", *kinds, raised=StorageError):
        yield


def check_folder(path: str, error: type[UserError] = UserError) -> None:
    """Checks that a local path is a folder or that one can be made there; accepts any address."""
    if is_remote(path):
        return
    place = os.path.abspath(path)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        raise error(f"`{path}` must be a folder. Received: {place}, which is a file")


def exists(path: str) -> bool:
    """Returns whether a file or folder exists."""
    with access_path(path):
        return _import_gfile().exists(path) if is_remote(path) else os.path.exists(path)


def get_size(path: str) -> int | None:
    """Returns the size of a file in bytes, or `None` if it is missing."""
    if not is_remote(path):
        return os.path.getsize(path) if os.path.isfile(path) else None
    with access_path(path):
        gfile = _import_gfile()
        return gfile.stat(path).length if gfile.exists(path) else None


def list_names(folder: str) -> list[str]:
    """Returns the names in a folder; empty if it is missing."""
    with access_path(folder):
        if not is_remote(folder):
            return os.listdir(folder) if os.path.isdir(folder) else []
        gfile = _import_gfile()
        return gfile.listdir(folder) if gfile.isdir(folder) else []


def make_folder(folder: str) -> None:
    """Makes a folder and its parents if they are missing."""
    with access_path(folder):
        if is_remote(folder):
            _import_gfile().makedirs(folder)
        else:
            os.makedirs(folder, exist_ok=True)


def find_matches(pattern: str) -> list[str]:
    """Returns the files, sorted, whose addresses match a pattern with `*`, `?` and `[...]`."""
    with access_path(pattern):
        gfile = _import_gfile()
        return sorted(path for path in gfile.glob(pattern) if not gfile.isdir(path))


def remove_file(path: str) -> None:
    """Removes a file if it exists."""
    if not is_remote(path):
        Path(path).unlink(missing_ok=True)
    elif exists(path):
        with access_path(path):
            _import_gfile().remove(path)


def move_file(source: str, path: str) -> None:
    """Renames a file within its storage, and replaces a file that has the new name."""
    if not is_remote(path):
        os.replace(source, path)
        return
    with access_path(path):
        _import_gfile().rename(source, path, overwrite=True)


def remove_folder(folder: str) -> None:
    """Removes a remote folder with all files in it."""
    with access_path(folder):
        _import_gfile().rmtree(folder)


def upload_files(source: Path, folder: str, names: Iterable[str]) -> None:
    """Copies files into a remote folder, in order."""
    make_folder(folder)
    with access_path(folder):
        for name in names:
            target = join_path(folder, name)
            _import_gfile().copy(str(source / name), target, overwrite=True)


@contextlib.contextmanager
def open_file(path: str, mode: str = "rb") -> Iterator[IO[bytes]]:
    """Opens a file of bytes to read ("rb"), write ("wb") or append ("ab")."""
    if not is_remote(path):
        with open(path, mode) as local:
            yield local
        return
    with access_path(path), _import_gfile().GFile(path, mode) as file:
        yield io.BufferedReader(_RemoteFile(file)) if mode == "rb" else file


class _RemoteFile(io.RawIOBase):
    """A `GFile` adapted to the file interface of Python."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self._file.tell()

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        block = self._file.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)


def hash_file(path: str) -> str:
    """Returns the SHA-256 of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(2**24):
            digest.update(block)
    return digest.hexdigest()


def read_text(path: str) -> str:
    """Returns the text of a file in UTF-8, without a byte order mark."""
    with access_path(path), open_file(path) as file:
        content = file.read()
    with explain_errors(f"`{path}` is not UTF-8", UnicodeDecodeError):
        return content.decode("utf-8").removeprefix("\ufeff")


def write_text(path: str, text: str) -> None:
    """Writes a file under another name and renames it, so that the file is always complete."""
    with access_path(path):
        with open_file(path + ".writing", "wb") as file:
            file.write(text.encode("utf-8"))
        move_file(path + ".writing", path)


def read_json(path: str) -> Any:
    """Returns the content of a JSON file."""
    with explain_errors(f"`{path}` is not valid JSON", ValueError, RecursionError):
        return json.loads(read_text(path))


def write_json(path: str, content: dict[str, Any]) -> None:
    """Writes a JSON file with `write_text`."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    # Names of files may hold lone surrogates, which JSON escapes as Python does.
    write_text(path, text.encode("utf-8", "backslashreplace").decode("utf-8") + "\n")


def read_json_lines(path: str) -> list[Any]:
    """Returns the objects of a file with one per line, without truncated lines.

    There are none if the file is missing.
    """
    if not exists(path):
        return []
    objects = []
    for line in read_text(path).splitlines():
        with contextlib.suppress(json.JSONDecodeError, RecursionError):
            objects.append(json.loads(line))
    return objects


def append_json_line(path: str, content: dict[str, Any]) -> None:
    """Appends an object to a file of JSON lines in one write, as other processes may append too."""
    line, size = json.dumps(content) + "\n", get_size(path)
    if size:
        with open_file(path) as file:
            file.seek(size - 1)
            if file.read(1) != b"\n":  # the process that was writing it was killed
                line = f"\n{line}"
    with access_path(path), open_file(path, "ab") as file:
        file.write(line.encode("utf-8"))


def drop_lines_after(path: str, step: int) -> list[dict[str, Any]]:
    """Removes the JSON lines of later steps and truncated lines; returns the remaining objects."""
    if not exists(path):
        return []
    text = read_text(path)
    kept = [line + "\n" for line in text.splitlines() if _is_kept(line, step)]
    if "".join(kept) != text:
        write_text(path, "".join(kept))
    return [json.loads(line) for line in kept]


def _is_kept(line: str, step: int) -> bool:
    try:
        return json.loads(line)["step"] <= step
    except (json.JSONDecodeError, KeyError, TypeError, RecursionError):
        return False  # truncated when the run was killed


def _import_gfile() -> Any:
    """Returns TensorFlow's module of file operations; importing TensorFlow takes seconds."""
    import tensorflow as tf

    return tf.io.gfile
