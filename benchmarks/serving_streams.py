"""Streams of a server: tokens a second of sessions that generate at the same time.

python -m benchmarks.serving_streams
python -m benchmarks.serving_streams --model exported/text8 --clients 1,8 --length 1000

Each client of a server of `txl_tf.serve` on this machine has a session, and takes the tokens of its
text as they are drawn. All sessions have the same seed and prompt, so their texts must be equal.
Without --model, the model is that of `benchmarks.serving_load`.
"""

import http.client
import json
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import flags

from benchmarks.served_process import start_server
from benchmarks.serving_load import find_folder, read_vocabulary
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.errors import UserError


class Stream(NamedTuple):
    """What a client has seen of a text.

    Args:
        text: The text.
        first: Seconds from the request to the first token.
        gaps: Seconds between its tokens.
    """

    text: str
    first: float
    gaps: Sequence[float]


def read_stream(url: str, prompt: str, length: int) -> Stream:
    """Opens a session, takes a text of `length` tokens from it, and deletes it.

    Raises:
        UserError: If the server answers with an error, or the stream ends early.
    """
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=600)
    try:
        session = _send(connection, "POST", f"{parts.path}/sessions", {"seed": 1})["session"]
        place = f"{parts.path}/sessions/{session}"
        start = time.perf_counter()
        body = json.dumps({"text": prompt, "length": length})
        connection.request("POST", f"{place}:generate", body)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise UserError(f"`{url}`: {response.read().decode()}")
        texts, times = [], []
        for line in response:
            if line.startswith(b"data: "):
                event = json.loads(line[len(b"data: ") :])
                if "id" in event:
                    texts.append(event["text"])
                    times.append(time.perf_counter())
                elif event.get("finished") != "length":
                    raise UserError(f"`{url}`: the stream ended with {event}")
        _send(connection, "DELETE", place)
    finally:
        connection.close()
    return Stream("".join(texts), times[0] - start, np.diff(times).tolist())


def _send(
    connection: http.client.HTTPConnection, method: str, path: str, content: object = None
) -> dict[str, str]:
    connection.request(method, path, None if content is None else json.dumps(content))
    response = connection.getresponse()
    answer = json.load(response)
    if response.status >= http.HTTPStatus.BAD_REQUEST:
        raise UserError(f"{method} {path}: {answer}")
    return answer


def measure_clients(url: str, n_clients: int, prompt: str, length: int) -> dict[str, float]:
    """Returns the figures of clients that take texts at the same time.

    Raises:
        UserError: If a stream fails.
    """
    streams: list[Stream] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            streams.append(read_stream(url, prompt, length))
        except (UserError, OSError, http.client.HTTPException) as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(n_clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    if errors:
        raise UserError(str(errors[0])) from errors[0]
    gaps = [gap for stream in streams for gap in stream.gaps]
    return {
        "clients": n_clients,
        "tokens_per_second": n_clients * length / seconds,
        "first_token_seconds": max(stream.first for stream in streams),
        "median_gap_seconds": float(np.median(gaps)),
        "p99_gap_seconds": float(np.percentile(gaps, 99)),
        "different_texts": sum(stream.text != streams[0].text for stream in streams),
    }


def format_figures(found: dict[str, float]) -> str:
    """Returns the figures of some clients as a line."""
    return (
        f"{found['clients']:>7,} clients: {found['tokens_per_second']:,.0f} tokens/s together; "
        f"first token within {found['first_token_seconds'] * 1000:,.0f} ms, then one in "
        f"{found['median_gap_seconds'] * 1000:,.1f} ms (median), "
        f"{found['p99_gap_seconds'] * 1000:,.1f} ms (99th percentile); "
        f"{found['different_texts']:,} texts differ"
    )


def measure_streams(options: flags.FlagValues) -> None:
    """Measures each number of clients and prints its figures.

    Raises:
        UserError: If the folder is not a SavedModel with texts, or the server fails.
    """
    numbers = list(map(int, options.clients))
    with tempfile.TemporaryDirectory() as temporary:
        folder = find_folder(options.model, temporary)
        symbol = read_vocabulary(folder).decode([0])
        bounds = [f"--max_sessions={max(numbers)}", f"--queue={2 * max(numbers)}"]
        with start_server(folder, *bounds, f"--max_length={options.length}") as server:
            print(server.lines[1])
            measure_clients(server.url, 1, symbol, 2)  # warm
            found = []
            for number in numbers:
                found.append(measure_clients(server.url, number, symbol, options.length))
                print(format_figures(found[-1]), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    model_help = "Folder that txl_tf.export has written. [default: a model with random weights]"
    define_flag(options, "model", str, None, model_help, is_path=True)
    define_flag(options, "clients", list, ["1", "4", "16"], "Numbers of clients at a time.")
    define_flag(options, "length", int, 300, "Tokens of each text.", lower_bound=2)
    define_flag(options, "json", str, None, "File for the figures. [default: none]", is_path=True)
    return options


def main(argv: list[str] = sys.argv) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(__doc__, define_flags(), measure_streams, argv)


if __name__ == "__main__":
    sys.exit(main())
