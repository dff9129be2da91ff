import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.serving_streams import format_figures, measure_clients, read_stream

TEXTS = ("a", "", "é", " b", "c")


@pytest.fixture
def served():
    """The requests of clients, and the URL of a server that streams `TEXTS`, then an event."""
    requests, last = [], {"finished": "length", "tokens": len(TEXTS)}

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status, body):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append((self.path, content))
            if self.path.endswith("/sessions"):
                self.answer(201, b'{"session": "one"}')
                return
            events = [{"id": 3, "text": text} for text in TEXTS] + [last]
            self.answer(200, b"".join(b"data: %s\n\n" % json.dumps(e).encode() for e in events))

        def do_DELETE(self):
            requests.append((self.path, None))
            self.answer(200, b"{}")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield requests, f"http://127.0.0.1:{server.server_port}/v1/models/m"
        server.shutdown()


def test_a_client_takes_the_text_of_a_session_and_deletes_it(served):
    requests, url = served
    stream = read_stream(url, "once", len(TEXTS))
    assert stream.text == "aé bc"
    assert len(stream.gaps) == len(TEXTS) - 1
    assert requests == [
        ("/v1/models/m/sessions", {"seed": 1}),
        ("/v1/models/m/sessions/one:generate", {"text": "once", "length": len(TEXTS)}),
        ("/v1/models/m/sessions/one", None),
    ]


def test_clients_are_counted_together(served):
    _, url = served
    found = measure_clients(url, 3, "once", len(TEXTS))
    assert (found["clients"], found["different_texts"]) == (3, 0)
    assert "3 clients" in format_figures(found)
