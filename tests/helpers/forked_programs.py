"""The training program in processes that are forked from one that has imported tensorflow.

Importing it takes seconds, and is not what tests of several processes are about.
"""

import os
import subprocess

from tests.soak.kill_resume import FORKS, train


class ForkedProgram:
    """A running training program, with the methods of `subprocess.Popen`.

    Args:
        arguments: Of the command line, without the program.
        log: Path of the file that takes all that it prints.
        environment: Variables that it has besides those of this process.
    """

    def __init__(self, arguments, log, environment=()):
        environment = dict(environment)
        self._process = FORKS.Process(target=train, args=(arguments, log, environment), daemon=True)
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


def run_forked(arguments, log):
    """Runs the program to its end, which must be a success; returns what it printed."""
    status = ForkedProgram(arguments, log).wait()
    assert status == 0, log.read_text()
    return log.read_text()
