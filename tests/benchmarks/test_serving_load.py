import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.serving_load import Clients, make_bodies


def make_answer(*texts):
    """Returns an answer with the losses of the tokens of each text."""
    splits = [sum(map(len, texts[:index])) for index in range(len(texts) + 1)]
    return {
        "outputs": {
            "nats": [sum(text) for text in texts],
            "tokens": [len(text) for text in texts],
            "bpc": [0.5 for _ in texts],
            "token_ids": [7 for text in texts for _ in text],
            "token_nats": [nats for text in texts for nats in text],
            "row_splits": splits,
        }
    }


class Scorer(BaseHTTPRequestHandler):
    """Answers each request as the server that it belongs to says."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.seen.append((self.client_address, body["inputs"]["texts"]))
            status, answer = self.server.answer(len(self.server.seen), body["inputs"]["texts"])
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def scorer():
    with ThreadingHTTPServer(("127.0.0.1", 0), Scorer) as server:
        server.lock, server.seen = threading.Lock(), []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run_clients(scorer, n_requests, n_clients):
    url = f"http://127.0.0.1:{scorer.server_port}/v1/models/mats"
    bodies = make_bodies(["a", "b", "c", "d", "e"], 2)
    return Clients(url, bodies, n_requests).run(n_clients)


def test_clients_send_all_requests_in_turn_and_keep_their_connections(scorer):
    scorer.answer = lambda _, texts: (200, make_answer(*([1.0] for _ in texts)))
    load = run_clients(scorer, 11, 3)
    assert (len(load.durations), load.n_different, load.n_failed) == (11, 0, 0)
    assert 0 < max(load.durations) <= load.seconds
    sent = [texts for _, texts in scorer.seen]
    assert [sent.count(texts) for texts in (["a", "b"], ["c", "d"], ["e"])] == [4, 4, 3]
    assert len({address for address, _ in scorer.seen}) <= 3
