"""The load of a server: requests a second, their durations, and answers that differ.

python -m benchmarks.serving_load
python -m benchmarks.serving_load --model exported/text8 --texts 100000 --clients 8

A server of `txl_tf.serve` on this machine scores short texts for clients that keep their
connections. Some different requests are sent again and again; every answer is compared, byte for
byte, with the first one to the same request. Without --model, the model is a small one with random
weights: 2 layers of width 64 for 27 characters.
"""

import http.client
import itertools
import json
import math
import string
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import flags

from benchmarks.compare import measure_apart
from benchmarks.served_process import ServedProcess, start_server
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.quiet_start import quiet_start

TEXT_LENS = (8, 24)  # symbols of a text, at least and at most
_N_LAYER, _D_MODEL, _N_HEAD, _D_INNER = 2, 64, 2, 256
_TGT_LEN = _MEM_LEN = _EXPORT_BATCH_SIZE = 64
_HEADERS = {"Content-Type": "application/json"}


class Load(NamedTuple):
    """What clients have seen.

    Args:
        durations: Seconds of each request.
        seconds: Seconds from the first request to the last answer.
        n_different: Number of texts whose answer was not that of the first request with them.
        n_failed: Number of requests with a status that is not 200.
    """

    durations: Sequence[float]
    seconds: float
    n_different: int
    n_failed: int


def draw_texts(vocabulary: Vocabulary, n_texts: int) -> list[str]:
    """Returns different short texts of symbols that are printable ASCII, the same at every call."""
    shown = [vocabulary.decode_bytes([i]) for i in range(len(vocabulary))]
    ids = np.array([i for i, text in enumerate(shown) if text.isascii() and _is_shown(text)])
    if len(ids) < 2:
        raise UserError("the vocabulary has no two symbols in ASCII")
    generator = np.random.default_rng(0)
    texts: dict[str, None] = {}
    while len(texts) < n_texts:
        n_symbols = generator.integers(*TEXT_LENS, endpoint=True)
        texts[vocabulary.decode(generator.choice(ids, n_symbols))] = None
    return list(texts)


def _is_shown(text: bytes) -> bool:
    return bool(text) and text.decode("ascii").isprintable()


def make_bodies(texts: Sequence[str], batch_size: int) -> list[bytes]:
    """Returns requests that score the texts, `batch_size` in each."""
    return [
        _make_body(texts[start : start + batch_size]) for start in range(0, len(texts), batch_size)
    ]


def _make_body(texts: Sequence[str]) -> bytes:
    return json.dumps({"signature_name": "score_text", "inputs": {"texts": list(texts)}}).encode()


class Clients:
    """Clients that send requests at the same time, each over one connection.

    Args:
        url: The URL of the model.
        bodies: The different requests, which are sent in turn.
        n_requests: The number of requests of all clients together.
    """

    def __init__(self, url: str, bodies: Sequence[bytes], n_requests: int):
        self._url = urllib.parse.urlsplit(url)
        self._bodies = bodies
        self._indices = iter(range(n_requests))
        self._lock = threading.Lock()
        self._first: dict[int, bytes] = {}
        self._durations: list[float] = []
        self._n_different = self._n_failed = 0
        self._errors: list[BaseException] = []

    def run(self, n_clients: int) -> Load:
        """Sends all requests, or as many as it can before Ctrl-C.

        Raises:
            UserError: If the server cannot be reached.
        """
        threads = [threading.Thread(target=self._send_all) for _ in range(n_clients)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        try:
            self._wait(threads)
        except KeyboardInterrupt:  # the figures are of what has been sent
            with self._lock:
                self._indices = iter(range(0))
            self._wait(threads)
        seconds = time.perf_counter() - start
        if self._errors:
            raise UserError(f"`{self._url.geturl()}`: {self._errors[0]}") from self._errors[0]
        return Load(self._durations, seconds, self._n_different, self._n_failed)

    def _wait(self, threads: Sequence[threading.Thread]) -> None:
        for thread in threads:
            thread.join()

    def _send_all(self) -> None:
        connection = http.client.HTTPConnection(self._url.netloc, timeout=600)
        try:
            while True:
                with self._lock:
                    index = next(self._indices, None)
                if index is None:
                    return
                kind = index % len(self._bodies)
                start = time.perf_counter()
                connection.request(
                    "POST", f"{self._url.path}:predict", self._bodies[kind], _HEADERS
                )
                response = connection.getresponse()
                answer = response.read()
                self._add(kind, response.status, answer, time.perf_counter() - start)
        except (OSError, http.client.HTTPException) as error:
            self._errors.append(error)
        finally:
            connection.close()

    def _add(self, kind: int, status: int, answer: bytes, duration: float) -> None:
        with self._lock:
            self._durations.append(duration)
            if status != 200:
                self._n_failed += 1
                return
            first = self._first.setdefault(kind, answer)
        if answer != first:
            n_different = count_different(json.loads(first), json.loads(answer))
            with self._lock:
                self._n_different += n_different


def count_different(first: dict[str, Any], other: dict[str, Any]) -> int:
    """Returns how many texts have other scores in another answer to the same request."""
    pairs = zip(_list_scores(first["outputs"]), _list_scores(other["outputs"]), strict=True)
    return sum(one != two for one, two in pairs)


def _list_scores(outputs: dict[str, list[Any]]) -> list[tuple[Any, ...]]:
    """Returns everything that an answer says of each text."""
    splits = outputs["row_splits"]
    rows = [slice(start, end) for start, end in itertools.pairwise(splits)]
    tokens = [(outputs["token_ids"][row], outputs["token_nats"][row]) for row in rows]
    names = ("nats", "tokens", "bpc")
    return list(zip(*(outputs[name] for name in names), tokens, strict=True))


def summarize(load: Load, batch_size: int) -> dict[str, float]:
    """Returns the figures of a load.

    >>> load = Load([0.1, 0.2, 0.3, 0.4], 0.5, n_different=0, n_failed=0)
    >>> summarize(load, batch_size=3)["requests_per_second"]
    8.0
    """
    durations = np.array(load.durations)
    return {
        "requests": len(durations),
        "texts": len(durations) * batch_size,
        "seconds": load.seconds,
        "requests_per_second": len(durations) / load.seconds,
        "texts_per_second": len(durations) * batch_size / load.seconds,
        "median_seconds": float(np.median(durations)),
        "p99_seconds": float(np.percentile(durations, 99)),
        "longest_seconds": float(durations.max()),
        "failed_requests": load.n_failed,
        "different_answers": load.n_different,
    }


def measure_batching(url: str, texts: Sequence[str]) -> float:
    """Returns the largest difference in nats between a text alone and in a request with others."""
    together = _score(url, texts)
    alone = [_score(url, [text])[0] for text in texts]
    return max(abs(one - two) for one, two in zip(together, alone, strict=True))


def _score(url: str, texts: Sequence[str]) -> list[float]:
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=600)
    connection.request("POST", f"{parts.path}:predict", _make_body(texts), _HEADERS)
    answer = json.load(connection.getresponse())
    connection.close()
    return answer["outputs"]["nats"]


def measure(
    server: ServedProcess, texts: Sequence[str], options: flags.FlagValues
) -> dict[str, Any]:
    """Returns all figures of a server that scores texts."""
    bodies = make_bodies(texts, options.batch)
    n_requests = math.ceil(options.texts / options.batch)
    Clients(server.url, bodies[: options.clients], options.clients).run(options.clients)  # warm
    before = server.read_memory()
    found: dict[str, Any] = summarize(
        Clients(server.url, bodies, n_requests).run(options.clients), options.batch
    )
    found |= {"memory_before": before, "memory_after": server.read_memory()}
    return {**found, "batching_nats": measure_batching(server.url, texts[: options.batch])}


def format_figures(found: dict[str, Any]) -> str:
    """Returns the figures as lines."""
    return "\n".join(
        [
            f"{found['requests']:,} requests of {found['texts']:,} texts in "
            f"{found['seconds']:,.1f} s",
            f"{found['requests_per_second']:,.1f} requests/s, {found['texts_per_second']:,.0f} "
            "texts/s",
            f"a request takes {found['median_seconds'] * 1000:,.1f} ms (median), "
            f"{found['p99_seconds'] * 1000:,.1f} ms (99th percentile), at most "
            f"{found['longest_seconds'] * 1000:,.1f} ms",
            f"{found['failed_requests']:,} requests failed, {found['different_answers']:,} texts "
            "got another answer than at first",
            f"memory of the server: {found['memory_before'] / 2**20:,.0f} MiB before, "
            f"{found['memory_after'] / 2**20:,.0f} MiB after",
            f"a text alone or with others: at most {found['batching_nats']:.1e} nats apart",
        ]
    )


def main(argv: list[str] = sys.argv) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(__doc__, define_flags(), measure_load, argv)


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    model_help = "Folder that txl_tf.export has written. [default: a model with random weights]"
    define_flag(options, "model", str, None, model_help, is_path=True)
    define_flag(options, "texts", int, 1_000_000, "Number of texts to score.", lower_bound=1)
    define_flag(options, "batch", int, 64, "Number of texts in a request.", lower_bound=1)
    define_flag(options, "clients", int, 4, "Number of clients.", lower_bound=1)
    kinds_help = "Number of different requests, which are sent in turn."
    define_flag(options, "kinds", int, 250, kinds_help, lower_bound=1)
    define_flag(options, "json", str, None, "File for the figures. [default: none]", is_path=True)
    return options


def measure_load(options: flags.FlagValues) -> None:
    """Measures a server and prints the figures.

    Raises:
        UserError: If the folder is not a SavedModel that scores texts, or the server fails.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = find_folder(options.model, temporary)
        texts = draw_texts(read_vocabulary(folder), options.kinds * options.batch)
        with start_server(folder) as server:
            found = measure(server, texts, options)
    print(format_figures(found))
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n")


def find_folder(model: str | None, temporary: str) -> Path:
    """Returns the folder of a SavedModel; `None` exports one with random weights to `temporary`."""
    if model is not None:
        return Path(model)
    folder = Path(temporary, "exported")
    measure_apart(_export_small, folder)
    return folder


def read_vocabulary(folder: Path) -> Vocabulary:
    """Returns the vocabulary of a SavedModel.

    Raises:
        UserError: If it has none.
    """
    try:
        content = json.loads((folder / "assets" / "vocabulary.json").read_text())
    except OSError as error:
        raise UserError(f"`{folder}` has no vocabulary: {error.strerror}") from error
    return Vocabulary.from_json(content)


def _export_small(folder: Path) -> None:
    with quiet_start():
        import tensorflow  # noqa: F401
    from txl_tf.config import EvalConfig, ModelConfig
    from txl_tf.language_model import LanguageModel
    from txl_tf.model import TransformerXL

    vocabulary = Vocabulary("char", ("_", *string.ascii_lowercase), space="_")
    config = ModelConfig(
        n_token=len(vocabulary),
        n_layer=_N_LAYER,
        d_model=_D_MODEL,
        d_embed=_D_MODEL,
        n_head=_N_HEAD,
        d_head=_D_MODEL // _N_HEAD,
        d_inner=_D_INNER,
    )
    evaluation = EvalConfig(tgt_len=_TGT_LEN, mem_len=_MEM_LEN)
    LanguageModel(TransformerXL(config, seed=0), vocabulary, evaluation).export(
        folder, batch_size=_EXPORT_BATCH_SIZE
    )


if __name__ == "__main__":
    sys.exit(main())
