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
import time

from tests.helpers.forked_programs import train
from tests.soak.harness import run_soak
from tests.soak.kill_resume import Run, make_records
from txl_tf.errors import UserError

DISKS = {"full disk": ("size=2m", "size=1g"), "read-only disk": ("ro", "rw")}
YEARS = 3e8  # seconds
MAY_MOUNT = "TXL_TF_SOAK_MAY_MOUNT"  # in the environment of the process that `unshare` starts


def train_with_jumps(arguments, log, environment):
    """Trains with a clock of which each reading is up to ten years early or late."""
    clock = time.time
    time.time = lambda: clock() + random.uniform(-YEARS, YEARS)
    train(arguments, log, environment)


def fail(run):
    """Trains until an error ends the run, and returns the line that says which."""
    try:
        run.finish()
    except UserError as error:
        text = run.log.read_text()
        line = text.rstrip().rpartition("\n")[2]
        if "Traceback" in text or "train_gpu" not in line:
            raise UserError(f"no line says why: {error}") from error
        return line.replace(f"{run.folder}/", "")
    raise UserError("the run did not fail")


def mount(folder, options):
    """Mounts a file system in memory, or changes its options."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)


def soak(root, options):
    """Disturbs runs in each way."""
    make_records(root)
    whole = Run(root, "whole", options.steps)
    whole.finish()

    def finish(name, run, line):
        run.finish()
        cells = {"what the run says": line, "numbers compared": len(run.read_numbers())}
        return name, cells, run.compare(whole)

    for number, (name, (disturbed, mended)) in enumerate(DISKS.items()):
        run = Run(root, f"disk-{number}", options.steps)
        mount(run.folder, "size=1g")
        try:
            run.kill(0)
            mount(run.folder, f"remount,{disturbed}")
            line = fail(run)
            mount(run.folder, f"remount,{mended}")
            yield finish(name, run, line)
        finally:
            subprocess.run(["umount", run.folder], check=True)
    run = Run(root, "jumps", options.steps, train=train_with_jumps)
    run.kill(0)
    yield finish("clock that jumps by years", run, "nothing")


if __name__ == "__main__":
    if MAY_MOUNT not in os.environ:
        os.environ[MAY_MOUNT] = "1"
        command = ["unshare", "--map-root-user", "--mount", sys.executable, *sys.orig_argv[1:]]
        os.execvp(command[0], command)
    sys.exit(run_soak(__doc__, soak, sys.argv, steps=(60, "Steps of each run.")))
