"""Trains on a full disk, on a read-only disk, and with a clock that jumps.

python -m tests.soak.disks_and_clocks

The disk is a file system in memory, which is mounted for this program alone by `unshare`: it needs
Linux, but not root. A run that cannot write must end with one line that says so. The same command,
given again when the disk can be written, must make the numbers of a run that nothing disturbed.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks.tables import print_table
from tests.soak.kill_resume import Run, define_run_flags, make_records, read_numbers, train
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

YEARS = 3e8  # seconds


def train_with_jumps(arguments: list[str], log: Path, environment: dict[str, str]) -> None:
    """Trains with a clock of which each reading is up to ten years early or late."""
    clock = time.time
    time.time = lambda: clock() + random.uniform(-YEARS, YEARS)
    train(arguments, log, environment)


def fail(run: Run) -> str:
    """Trains until an error ends the run, and returns the line that says which.

    Raises:
        UserError: If the run does not fail, or fails without such a line.
    """
    try:
        run.finish()
    except UserError as error:
        *_, line = ["", *run.read_outputs().splitlines()]
        if "Traceback" in run.read_outputs() or "train_gpu" not in line:
            raise UserError(f"no line says why: {error}") from error
        return line.replace(f"{run.folder}/", "")
    raise UserError("the run did not fail")


def mount(disk: Path, options: str) -> None:
    """Mounts a file system in memory, or changes its options."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True)


def disturb(root: Path, options: flags.FlagValues) -> Iterator[tuple[object, ...]]:
    """Yields a row for each disturbance.

    Raises:
        UserError: If a run fails in another way than it should, or a number differs.
    """

    def make_run(name: str, *more: Any) -> Run:
        run = Run(root / name / "run", "plain", root / "records", options, *more)
        run.folder.mkdir(parents=True)
        return run

    make_records(root / "records")
    whole = make_run("whole")
    whole.finish()

    run = make_run("full")
    mount(run.folder, "size=2m")
    line = fail(run)
    mount(run.folder, "remount,size=1g")
    run.finish()
    yield compare("full disk", line, whole, run)

    run = make_run("read_only")
    mount(run.folder, "size=1g")
    run.kill(0)
    mount(run.folder, "remount,ro")
    line = fail(run)
    mount(run.folder, "remount,rw")
    run.finish()
    yield compare("read-only disk", line, whole, run)

    run = make_run("jumps", train_with_jumps)
    run.kill(0)
    run.finish()
    yield compare("clock that jumps by years", "", whole, run)


def compare(name: str, line: str, whole: Run, disturbed: Run) -> tuple[object, ...]:
    """Returns a row of the table.

    Raises:
        UserError: If a number differs.
    """
    expected, found = read_numbers(whole.folder), read_numbers(disturbed.folder)
    if expected != found:
        raise UserError(f"{name}: the numbers differ")
    return name, f"`` {line} ``" if line else "nothing", len(found)


def soak(options: flags.FlagValues) -> None:
    """Disturbs runs, and prints a table."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    if not options.mounts:
        command = [sys.executable, "-m", "tests.soak.disks_and_clocks", *sys.argv[1:], "--mounts"]
        os.execvp("unshare", ["unshare", "--map-root-user", "--mount", *command])
    with tempfile.TemporaryDirectory() as name:
        header = ("disturbance", "what the run says", "equal numbers")
        try:
            print_table(header, disturb(Path(name), options))
        finally:
            for disk in ("full", "read_only"):
                subprocess.run(["umount", f"{name}/{disk}/run"], check=False)


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_run_flags(options, n_steps=60)
    text = "Whether the process may mount file systems, as `unshare` allows it."
    define_flag(options, "mounts", bool, False, text)
    return run_program(__doc__, options, soak, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
