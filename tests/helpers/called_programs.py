"""Programs of txl_tf called as commands, and what they leave; imports nothing of the package."""

import contextlib
import importlib
import io
import os
import random
import re
import socket
from pathlib import Path
from typing import NamedTuple

NO_NETWORK = "a test must not reach the network"
_NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]\d+)?(?!\w)")
# What TensorFlow writes to standard error whatever TF_CPP_MIN_LOG_LEVEL is; marked as an error, but
# no more than that, that the machine has no GPU driver.
_BANNER = re.compile(
    r"WARNING: All log messages before absl::InitializeLog.*|[IW]\d{4} [\d:.]+ +\d+ \S+:\d+\] .*"
    r"|E\d{4} .* failed call to cuInit: .*\(303\)"
)
_WORDS = re.findall(r"\w+", "once upon a time there was a king of the sea and the land")


class Outcome(NamedTuple):
    """What a command has answered.

    Attributes:
        status: exit status.
        out: standard output.
        err: standard error.
        files: files that are new in the current folder, sorted, as `mask_name` shows them.
    """

    status: int
    out: str
    err: str
    files: list[str]


def call(program, *arguments):
    """Runs a program on arguments in this process and returns what it answered."""
    main = importlib.import_module(program).main
    out, err, before = io.StringIO(), io.StringIO(), list_files()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([program.rpartition(".")[2], *map(str, arguments)])
    new = {name for name in list_files().keys() - before.keys() if not name.endswith("/")}
    return Outcome(status, out.getvalue(), err.getvalue(), sorted({mask_name(n) for n in new}))


@contextlib.contextmanager
def standard_input(content):
    """Has file descriptor 0 be a pipe with these bytes, few enough to wait in it."""
    kept, (reading, writing) = os.dup(0), os.pipe()
    os.write(writing, content)
    os.close(writing)
    os.dup2(reading, 0)
    os.close(reading)
    try:
        yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def drop_banner(text):
    """Returns what a process has written to standard error, without TensorFlow's banner."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not _BANNER.fullmatch(line.rstrip("\n")))


def list_files():
    """Returns size and time of change of each file below the current folder; folders end in /."""
    found = {}
    for path in Path().rglob("*"):
        if path.is_dir():
            found[f"{path.as_posix()}/"] = None
        else:
            about = path.lstat()
            found[path.as_posix()] = about.st_size, about.st_mtime_ns
    return found


def mask_name(name):
    """Replaces the parts of a file's name that are drawn, or computed from contents.

    >>> mask_name("run/events/events.out.tfevents.1795559508.vm.10922.2.v2")
    'run/events/events.out.tfevents.*'
    >>> mask_name("data/valid-00000-of-00001-9244eefc.tfrecords")
    'data/valid-00000-of-00001-*.tfrecords'
    """
    name = re.sub(r"(events\.out\.tfevents\.).*", r"\1*", name)
    return re.sub(r"(?<=[-/])(?:[0-9a-f]{16}|[0-9a-f]{8})\b", "*", name)


def mask_numbers(text):
    """Returns the lines of a text with # for each number, and without the blanks of columns.

    >>> mask_numbers("loss      3.0041 nats, ckpt-6")
    ['loss # nats, ckpt-#']
    """
    return [" ".join(_NUMBER.sub("#", line).split()) for line in text.splitlines()]


def forbid_network(monkeypatch):
    """Has every connection fail."""

    def fail(*_, **__):
        raise OSError(NO_NETWORK)

    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, fail)


def write_texts(folder, **line_counts):
    """Writes files NAME.txt with so many lines of random words."""
    rng = random.Random(7)
    os.makedirs(folder, exist_ok=True)
    for name, count in line_counts.items():
        lines = (" ".join(rng.choices(_WORDS, k=7)) for _ in range(count))
        (Path(folder) / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
