"""Scores texts over HTTP while other clients stall, vanish, and send garbage.

python -m tests.soak.server_clients --scores 2000000

It needs the extra serve. All scores must equal the first ones, the server must answer at the end,
and its memory must not have grown by more than a tenth after the first tenth of the scores.
"""

import contextlib
import json
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks.tables import print_table
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

ROOT = Path(__file__).parents[2]
RUN = ROOT / "examples" / "models" / "pydoc"
N_TEXTS = 200  # of a request
HEAD = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
MISDEEDS = {"stalled": HEAD, "vanished": HEAD + b'{"texts": ["', "sent garbage": b""}


@contextlib.contextmanager
def start_server() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yields the process of a server, and its port."""
    command = [sys.executable, "-m", "txl_tf", "serve", str(RUN), "--port=0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    ) as process:
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if line.startswith("HTTP at "))
            yield process, int(line.split()[-1].split(":")[2].split("/")[0])
        finally:
            process.terminate()


def make_texts() -> list[str]:
    """Returns short texts: parts of the README."""
    text, generator = (ROOT / "README.md").read_text(encoding="utf-8"), random.Random(0)
    starts = [generator.randrange(len(text) - 100) for _ in range(N_TEXTS)]
    return [text[start : start + generator.randint(5, 60)] for start in starts]


def request_scores(port: int, texts: list[str]) -> list[Any]:
    """Returns the scores of texts."""
    url, body = f"http://127.0.0.1:{port}/v1/score", json.dumps({"texts": texts}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=600) as answer:
        return json.load(answer)["scores"]


def misbehave(port: int, kind: str, done: threading.Event, counts: Counter) -> None:
    """Connects again and again, and each time sends what no client should."""
    generator = random.Random(kind)
    while not done.is_set():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(MISDEEDS[kind] or generator.randbytes(generator.randint(1, 5000)))
            done.wait(20.0 if kind == "stalled" else 0.01)
            counts[kind] += 1
        done.wait(0.1)


def read_memory(process: subprocess.Popen[str]) -> int:
    """Returns the resident memory of a process in MB."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return (
        int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) >> 10
    )


def soak(options: flags.FlagValues) -> None:
    """Runs the clients and prints a table.

    Raises:
        UserError: If a score differs, or the memory of the server grows.
    """
    texts, counts, done = make_texts(), Counter(), threading.Event()
    n_requests = -(-options.scores // N_TEXTS)
    with start_server() as (process, port):
        expected = request_scores(port, texts)
        bad = [
            threading.Thread(target=misbehave, args=(port, kind, done, counts), daemon=True)
            for kind in MISDEEDS
        ]
        for thread in bad:
            thread.start()
        start, n_different, memory = time.monotonic(), 0, 0
        for index in range(n_requests):
            n_different += request_scores(port, texts) != expected
            if index == n_requests // 10:
                memory = read_memory(process)
        seconds, after = time.monotonic() - start, read_memory(process)
        done.set()
    header = (
        "scores",
        "a second",
        "requests that differ",
        *(f"clients that {k}" for k in MISDEEDS),
    )
    print_table(
        (*header, "memory after a tenth, MB", "at the end"),
        [
            (
                f"{n_requests * N_TEXTS:,}",
                f"{n_requests * N_TEXTS / seconds:,.0f}",
                n_different,
                *(f"{counts[kind]:,}" for kind in MISDEEDS),
                f"{memory:,}",
                f"{after:,}",
            )
        ],
    )
    if n_different or after > 1.1 * memory:
        raise UserError("scores differ, or the memory grew")


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "scores", int, 20_000, "Number of scores in all.", lower_bound=1)
    return run_program(__doc__, options, soak, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
