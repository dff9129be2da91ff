"""The training program in processes that are forked from one that has imported tensorflow.

Importing it takes seconds, and is not what tests of several processes are about.
"""

import os
import subprocess
import sys
from multiprocessing import get_context

FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(["tests.helpers.preloaded"])


def train(arguments, log, environment):
    """Runs the training program in a process of its own; the log takes all that it prints."""
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    from txl_tf.programs import train as train_gpu

    sys.exit(train_gpu.main(["train_gpu.py", *arguments]))


class ForkedProgram:
    """A running training program, with the methods of `subprocess.Popen`.

    Args:
        arguments: Of the command line, without the program.
        log: Path of the file that takes all that it prints.
        environment: Variables that it has besides those of this process.
        run: Runs the program, as `train` does.
    """

    def __init__(self, arguments, log, environment=(), run=train):
        environment = dict(environment)
        self._process = FORKS.Process(target=run, args=(arguments, log, environment), daemon=True)
        self._process.start()

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("train_gpu.py", timeout)
        return self._process.exitcode

    def send_signal(self, number):
        os.kill(self._process.pid, number)

    def kill(self):
        self._process.kill()


def run_forked(arguments, log):
    """Runs the program to its end, which must be a success; returns what it printed."""
    status = ForkedProgram(arguments, log).wait()
    assert status == 0, log.read_text()
    return log.read_text()
