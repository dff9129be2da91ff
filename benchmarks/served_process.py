"""A server of a SavedModel in a process of its own, on this machine."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from txl_tf.errors import UserError

ROOT = Path(__file__).parents[1]
_END_SECONDS = 60.0  # to wait for the end of a server that was told to end


class ServedProcess(NamedTuple):
    """A server that runs.

    Args:
        process: The process.
        url: The URL of the model over HTTP.
        address: The address over gRPC.
        lines: The lines that it has printed.
    """

    process: "subprocess.Popen[str]"
    url: str
    address: str
    lines: tuple[str, ...]

    def read_memory(self) -> int:
        """Returns the resident memory of the process in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        kilobytes = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(kilobytes.split()[1]) * 1024


@contextlib.contextmanager
def start_server(folder: Path | str, *flags: str) -> Iterator[ServedProcess]:
    """Serves a SavedModel at ports that the system chooses, and ends the server.

    Args:
        folder: The SavedModel.
        *flags: Further flags of `txl_tf.serve`.

    Raises:
        UserError: If the server ends before it listens; its last line says why.
    """
    command = [sys.executable, "-m", "txl_tf.serve", f"--model={folder}", "--port=0"]
    with subprocess.Popen(
        [*command, "--grpc_port=0", *flags],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the caller, which ends the server
    ) as process:
        try:
            yield _wait_until_it_listens(process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_END_SECONDS)
            process.kill()


def _wait_until_it_listens(process: "subprocess.Popen[str]") -> ServedProcess:
    assert process.stdout is not None
    url, lines = "", []
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith("HTTP at "):
            url = line.split()[-1]
        if line.startswith("gRPC at "):
            return ServedProcess(process, url, line.split()[2].rstrip(","), tuple(lines))
    raise UserError(f"the server ended with status {process.wait()}")
