import json
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks import serving_load
from benchmarks.serving_load import Clients, Load, count_different, draw_texts, make_bodies
from txl_tf.data import Vocabulary
from txl_tf.errors import UserError

LETTERS = Vocabulary("char", ("_", "a", "b", "é", "\n"), space="_")


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


def test_texts_are_different_and_short():
    texts = draw_texts(LETTERS, 101)
    assert len(set(texts)) == 101
    assert {len(text) for text in texts} == set(range(8, 25))
    assert set("".join(texts)) == set(" ab")
    assert draw_texts(LETTERS, 101) == texts


def test_a_vocabulary_without_letters_is_refused():
    with pytest.raises(UserError, match="no two symbols in ASCII"):
        draw_texts(Vocabulary("char", ("é", "ä")), 3)


def test_requests_hold_all_texts_in_order():
    bodies = [json.loads(body) for body in make_bodies(["a", "b", "c", "d", "e"], 2)]
    assert [body["inputs"]["texts"] for body in bodies] == [["a", "b"], ["c", "d"], ["e"]]
    assert {body["signature_name"] for body in bodies} == {"score_text"}


def test_texts_with_another_answer_are_counted():
    first = make_answer([1.0, 2.0], [], [3.0, 4.0, 5.0])
    assert count_different(first, make_answer([1.0, 2.0], [], [3.0, 4.0, 5.0])) == 0
    assert count_different(first, make_answer([2.0, 1.0], [], [3.0, 4.0, 5.0])) == 1
    assert count_different(first, make_answer([1.0, 2.5], [], [3.0, 4.0, 5.5])) == 2


def test_figures_are_of_requests_and_texts():
    durations = [0.001 * number for number in range(1, 201)]
    found = serving_load.summarize(Load(durations, 4.0, n_different=3, n_failed=2), batch_size=7)
    assert (found["requests"], found["texts"]) == (200, 1400)
    assert (found["requests_per_second"], found["texts_per_second"]) == (50.0, 350.0)
    assert found["median_seconds"] == pytest.approx(0.1005)
    assert found["p99_seconds"] == pytest.approx(0.19801)
    assert found["longest_seconds"] == pytest.approx(0.2)
    assert (found["failed_requests"], found["different_answers"]) == (2, 3)


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


def test_clients_count_other_answers_and_refusals(scorer):
    """Of texts and of requests."""

    def answer(number, texts):
        if number == 5:
            return 503, {"error": "busy"}
        return 200, make_answer(*([2.0 if number == 8 else 1.0] for _ in texts))

    scorer.answer = answer
    load = run_clients(scorer, 11, 1)  # the eighth request has two texts
    assert (len(load.durations), load.n_different, load.n_failed) == (11, 2, 1)


def test_ctrl_c_leaves_the_figures_of_what_was_sent(scorer):
    def answer(number, texts):
        if number == 3:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return 200, make_answer(*([1.0] for _ in texts))

    scorer.answer = answer
    load = run_clients(scorer, 10**9, 2)
    assert 0 < len(load.durations) <= len(scorer.seen) < 10**9


def test_a_server_that_is_not_there_is_an_error():
    with ThreadingHTTPServer(("127.0.0.1", 0), Scorer) as closed:
        pass
    with pytest.raises(UserError, match="Connection refused"):
        run_clients(closed, 3, 2)


def test_a_folder_without_vocabulary_is_one_line(tmp_path, capsys):
    assert serving_load.main(["serving_load", f"--model={tmp_path}"]) == 1
    error = capsys.readouterr().err
    assert error == f"serving_load: `{tmp_path}` has no vocabulary: No such file or directory\n"
