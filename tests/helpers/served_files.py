"""A server on this machine, with pages that a test chooses."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

CONTENT = b"banana\n" * 1009  # of a page that has no other


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requested.append(self.path)
        self.server.headers.append(self.headers)
        status, headers, body = self.server.pages.get(self.path, (404, {}, b"not here"))
        self.server.may_answer.wait()
        if callable(body):
            with contextlib.suppress(OSError):  # the client may have hung up
                body(self)
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.pages, server.requested, server.headers = {}, [], []
        server.may_answer = threading.Event()
        server.may_answer.set()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.may_answer.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def serve(server):
    """Serves a page: its body, or what writes the whole answer with the handler that it gets."""

    def serve(path, body=CONTENT, status=200, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        server.pages[path] = (status, headers, body)
        return f"http://127.0.0.1:{server.server_port}{path}"

    return serve


@pytest.fixture
def closed_url():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        port = server.server_port
    return f"http://127.0.0.1:{port}/fruit.zip"
