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
import urllib.request
from collections import Counter
from pathlib import Path

from tests.helpers.places import ROOT
from tests.soak.harness import run_soak
from txl_tf.errors import UserError
from txl_tf.pretrained import DEFAULT
from txl_tf.progress import Bar

N_TEXTS = 200  # of a request
HEAD = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
MISDEEDS = {"stalled": HEAD, "vanished": HEAD + b'{"texts": ["', "sent garbage": b""}


@contextlib.contextmanager
def start_server(log):
    """Yields the id of a server's process, and its port; the log takes its messages."""
    command = [sys.executable, "-m", "txl_tf", "serve", DEFAULT, "--port=0"]
    with (
        log.open("w") as messages,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages, text=True) as process,
    ):
        try:
            line = next((line for line in process.stdout if line.startswith("HTTP at ")), None)
            if line is None:
                raise UserError(f"the server did not start: {log.read_text()}")
            yield process.pid, int(line.split(":")[-1].split("/")[0])
        finally:
            process.terminate()


def request_scores(port, texts):
    """Returns the scores of texts."""
    url, body = f"http://127.0.0.1:{port}/v1/score", json.dumps({"texts": texts}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=600) as answer:
        return json.load(answer)["scores"]


def misbehave(port, kind, done, cells):
    """Connects again and again, and each time sends what no client should."""
    generator = random.Random(kind)
    while not done.wait(0.1):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(MISDEEDS[kind] or generator.randbytes(generator.randint(1, 5000)))
            done.wait(20.0 if kind == "stalled" else 0.01)
            cells[f"clients that {kind}"] += 1


def read_memory(process):
    """Returns the resident memory of a process in MB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) >> 10


def soak(root, options):
    """Runs the clients."""
    text, generator = (ROOT / "README.md").read_text(encoding="utf-8"), random.Random(0)
    starts = [generator.randrange(len(text) - 100) for _ in range(N_TEXTS)]
    texts = [text[start : start + generator.randint(5, 60)] for start in starts]
    n_requests, done = -(-options.scores // N_TEXTS), threading.Event()
    cells = Counter(dict.fromkeys([f"clients that {kind}" for kind in MISDEEDS], 0))
    with (
        start_server(root / "messages") as (process, port),
        Bar("scores", total=n_requests * N_TEXTS, unit="score") as bar,
    ):
        expected = request_scores(port, texts)
        for kind in MISDEEDS:
            arguments = (port, kind, done, cells)
            threading.Thread(target=misbehave, args=arguments, daemon=True).start()
        for index in range(n_requests):
            cells["requests that differ"] += request_scores(port, texts) != expected
            bar.update(N_TEXTS)
            if index == n_requests // 10:
                cells["MB after a tenth"] = read_memory(process)
        cells["MB at the end"] = read_memory(process)
        done.set()
    faults = ["scores differ"] * (cells["requests that differ"] > 0)
    faults += ["the memory grew"] * (cells["MB at the end"] > 1.1 * cells["MB after a tenth"])
    yield f"{n_requests * N_TEXTS:,} scores", cells, faults


if __name__ == "__main__":
    sys.exit(run_soak(__doc__, soak, sys.argv, scores=(20_000, "Number of scores in all.")))
