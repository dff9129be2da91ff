"""Trains on a full disk, on a read-only disk, and with a clock that jumps.

python -m tests.soak.disks_and_clocks

The disk is a file system in memory, which is mounted for this program alone by `unshare`: it needs
Linux, but not root. A run that cannot write must end with one line that says so. The same command,
given again when the disk can be written, must make the numbers of a run that nothing disturbed.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from absl import flags

from benchmarks.tables import print_table
from tests.soak.kill_resume import make_arguments, make_records, read_numbers
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.errors import UserError

ROOT = Path(__file__).parents[2]
TRAIN = ("train_gpu.py",)
# Each reading of the clock is up to ten years early or late.
TRAIN_WITH_JUMPS = (
    "-c",
    "import random, sys, time; clock = time.time; "
    "time.time = lambda: clock() + random.uniform(-3e8, 3e8); "
    "import train_gpu; sys.exit(train_gpu.main(['train_gpu.py', *sys.argv[1:]]))",
)


class Training:
    """A run that is started several times.

    Args:
        folder: The folder of the run.
        data_dir: The data set.
        options: The flags.
    """

    def __init__(self, folder: Path, data_dir: Path, options: flags.FlagValues):
        self._folder = folder
        self._arguments = make_arguments(folder, "plain", data_dir, 1, options)

    def start(self, program: tuple[str, ...] = TRAIN) -> subprocess.Popen[str]:
        """Returns a process that trains."""
        return subprocess.Popen(
            [sys.executable, *program, *self._arguments],
            cwd=ROOT,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def fail(self) -> str:
        """Trains until an error ends the run, and returns the line that says which.

        Raises:
            UserError: If the run does not fail, or fails without such a line.
        """
        process = self.start()
        _, errors = process.communicate()
        *_, line = ["", *errors.splitlines()]
        if process.returncode != 1 or "Traceback" in errors or "train_gpu" not in line:
            raise UserError(f"the run ended with {process.returncode}: {errors[-2000:]}")
        return line

    def kill(self) -> None:
        """Trains until a state is saved, and kills the process."""
        with self.start() as process:
            while process.poll() is None and not [*self._folder.glob("checkpoints/*.index")]:
                time.sleep(0.01)
            process.kill()

    def finish(self, program: tuple[str, ...] = TRAIN) -> dict[str, float]:
        """Trains to the end, and returns the numbers of the run.

        Raises:
            UserError: If the run fails.
        """
        process = self.start(program)
        _, errors = process.communicate()
        if process.returncode:
            raise UserError(f"the run failed: {errors[-2000:]}")
        return read_numbers(self._folder)


def mount(disk: Path, options: str) -> None:
    """Mounts a file system in memory, or changes its options."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True)


def disturb(root: Path, options: flags.FlagValues) -> Iterator[tuple[object, ...]]:
    """Yields a row for each disturbance.

    Raises:
        UserError: If a run fails in another way than it should, or a number differs.
    """
    records, disk = root / "records", root / "disk"
    make_records(records)
    disk.mkdir()
    whole = Training(root / "whole", records, options).finish()

    mount(disk, "size=2m")
    training = Training(disk / "full", records, options)
    line = training.fail()
    mount(disk, "remount,size=1g")
    yield compare("full disk", line.replace(f"{disk}/", ""), whole, training.finish())

    training = Training(disk / "read_only", records, options)
    training.kill()
    mount(disk, "remount,ro")
    line = training.fail()
    mount(disk, "remount,rw")
    yield compare("read-only disk", line.replace(f"{disk}/", ""), whole, training.finish())

    training = Training(root / "jumps", records, options)
    training.kill()
    yield compare("clock that jumps by years", "", whole, training.finish(TRAIN_WITH_JUMPS))


def compare(
    name: str, line: str, expected: dict[str, float], found: dict[str, float]
) -> tuple[object, ...]:
    """Returns a row of the table.

    Raises:
        UserError: If a number differs.
    """
    if expected != found:
        raise UserError(f"{name}: the numbers differ")
    return name, f"`` {line} ``" if line else "nothing", len(found), 0


def soak(options: flags.FlagValues) -> None:
    """Disturbs runs, and prints a table."""
    if not options.mounts:
        command = [sys.executable, "-m", "tests.soak.disks_and_clocks", *sys.argv[1:], "--mounts"]
        os.execvp("unshare", ["unshare", "--map-root-user", "--mount", *command])
    with tempfile.TemporaryDirectory() as name:
        header = ("disturbance", "what the run says", "numbers compared", "different")
        print_table(header, disturb(Path(name), options))
        subprocess.run(["umount", f"{name}/disk"], check=True)


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "steps", int, 60, "Steps of each run.", lower_bound=1)
    text = "Whether the process may mount file systems, as `unshare` allows it."
    define_flag(options, "mounts", bool, False, text)
    return run_program(__doc__, options, soak, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
