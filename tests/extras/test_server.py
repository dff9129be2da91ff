"""`txl serve` in a process of its own, and clients that behave and that do not."""

import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.parse

import pytest
from places import ROOT
from small_language_model import WORDS, make_model

for name in ("openai", "starlette", "uvicorn"):
    pytest.importorskip(name, reason="pip install -e '.[test-extras]'")

import openai  # noqa: E402  after what it needs
from starlette.applications import Starlette  # noqa: E402
from starlette.responses import PlainTextResponse  # noqa: E402
from starlette.routing import Route  # noqa: E402

import txl_tf.programs.serve  # noqa: E402
from txl_tf.apps.server import http_app  # noqa: E402
from txl_tf.apps.server.api_requests import RequestError  # noqa: E402

N_PLACES, MANY = 64, 100_000
WAIT = 300  # seconds that nothing takes, however slow the machine


@contextlib.contextmanager
def start_server(folder, *flags):
    """Yields the process of a server, and its URL."""
    command = [sys.executable, "-m", "txl_tf", "serve", str(folder), "--port=0", *flags]
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            lines = iter(process.stdout.readline, "")
            yield process, next(line.split()[-1] for line in lines if line.startswith("HTTP at "))
        finally:
            process.kill()


@pytest.fixture(scope="module")
def lm():
    return make_model(7, vocabulary=WORDS, same_length=True)


@pytest.fixture(scope="module")
def folder(lm, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "mats"
    lm.save(path)
    return path


@pytest.fixture(scope="module")
def server(folder):
    with start_server(folder, f"--max_tokens={MANY}") as started:
        yield started


@pytest.fixture(scope="module")
def url(server):
    return server[1]


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=WAIT) as client:
        yield client


def complete(client, prompt, *, top_k=40, session=None, **settings):
    """Calls the endpoint; fields that OpenAI does not know go beside the others."""
    more = {"session": session} if session else {}
    more |= {"top_k": top_k} if prompt else {}
    return client.completions.create(model="mats", prompt=prompt, extra_body=more, **settings)


def call(url, method, path, body=None):
    """Returns the status and the content of the answer to a request."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    netloc = urllib.parse.urlsplit(url).netloc
    with contextlib.closing(http.client.HTTPConnection(netloc, timeout=WAIT)) as connection:
        connection.request(method, path, data)
        response = connection.getresponse()
        return response.status, json.load(response)


def test_the_server_is_well_and_names_its_model(client, url):
    assert call(url, "GET", "/health") == (200, {"status": "ok"})
    (model,) = client.models.list()
    assert (model.id, model.object) == ("mats", "model")
    assert client.models.retrieve("mats") == model
    with pytest.raises(openai.NotFoundError, match="there is no model 'b/c', only 'mats'"):
        client.models.retrieve("b/c")


@pytest.mark.parametrize(("n_prompts", "top_k"), [(1, 3), (2, 40)])
def test_a_completion_is_the_text_of_the_package(n_prompts, top_k, client, lm):
    prompts = ["the cat sat", "a mat"][:n_prompts]
    settings = {"temperature": 0.8, "top_p": 0.9, "seed": 5}
    found = complete(client, prompts, max_tokens=37, top_k=top_k, **settings)
    expected = lm.generate(prompts, max_new_tokens=37, top_k=top_k, **settings)
    assert [choice.text for choice in found.choices] == expected
    assert [choice.finish_reason for choice in found.choices] == ["length"] * n_prompts
    n_read = sum(len(WORDS.encode(prompt)) for prompt in prompts)
    usage = found.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (n_read, 37 * n_prompts)
    assert usage.total_tokens == n_read + 37 * n_prompts


def test_a_stream_is_the_same_text_in_parts(client, lm):
    prompts = ["the cat", "a mat"]
    texts, n_events = ["", ""], 0
    for event in complete(client, prompts, max_tokens=37, stream=True):
        n_events += 1
        for choice in event.choices:
            texts[choice.index] += choice.text
    assert texts == lm.generate(prompts, max_new_tokens=37)
    assert n_events > 3
    assert event.usage.completion_tokens == 74
    assert [choice.finish_reason for choice in event.choices] == ["length", "length"]


@pytest.mark.parametrize("stream", [False, True])
def test_several_texts_of_each_prompt_have_seeds_in_turn_and_may_repeat_it(stream, client, lm):
    prompts = ["the cat", "a mat"]
    found = complete(client, prompts, n=2, echo=True, seed=5, max_tokens=13, stream=stream)
    texts = [""] * 4
    for answer in found if stream else [found]:
        for choice in answer.choices:
            texts[choice.index] += choice.text
    rows = [(prompt, seed) for prompt in prompts for seed in (5, 6)]
    assert texts == [p + lm.generate(p, max_new_tokens=13, seed=seed) for p, seed in rows]
    n_read = sum(len(WORDS.encode(prompt)) for prompt in prompts)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (n_read, 13 * 4)


def test_every_field_has_a_default(url, lm):
    status, found = call(url, "POST", "/v1/completions", {})
    assert status == 200
    assert found["choices"][0]["text"] == lm.generate("\n", max_new_tokens=16)


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_ends_before_its_stop(stream, client, lm):
    settings = {"temperature": 9.0, "seed": 1}
    whole = lm.generate("the cat", max_new_tokens=64, stops="at s", **settings)
    found = complete(client, "the cat", max_tokens=64, stop="at s", stream=stream, **settings)
    events = list(found) if stream else [found]
    text = "".join(event.choices[0].text for event in events)
    assert len(text) > 10
    assert text + "at sat" == whole
    assert events[-1].choices[0].finish_reason == "stop"
    assert events[-1].usage.completion_tokens == len(WORDS.encode(whole))


def test_a_session_continues_its_text(client, lm, url):
    """However it is cut into requests."""
    expected = lm.generate("the cat", max_new_tokens=71, seed=3, temperature=1.3)
    first = complete(client, "the cat", max_tokens=5, seed=3, temperature=1.3, session="a")
    text = first.choices[0].text
    for event in complete(client, "", max_tokens=33, stream=True, session="a"):
        text += event.choices[0].text
    last = complete(client, "", max_tokens=33, session="a")
    assert text + last.choices[0].text == expected
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (0, 33)
    assert call(url, "DELETE", "/v1/sessions/a")[0] == 200
    with pytest.raises(openai.NotFoundError, match="there is no session 'a'"):
        complete(client, "", session="a")


def test_a_session_reads_what_a_client_adds(client, lm, url):
    added = " sat on the mat" * 11  # more than one piece
    expected = lm.start("the cat", seed=3)
    text = expected.draw(5)[0]
    expected.read(added)
    assert complete(client, "the cat", max_tokens=5, seed=3, session="b").choices[0].text == text
    more = {"session": "b", "text": added}
    events = client.completions.create(
        model="mats", prompt="", max_tokens=21, stream=True, extra_body=more
    )
    *_, last = parts = list(events)
    assert "".join(event.choices[0].text for event in parts) == expected.draw(21)[0]
    assert last.usage.prompt_tokens == len(WORDS.encode(added))
    more["text"] = " dog"
    with pytest.raises(openai.BadRequestError, match="of the vocabulary are known"):
        client.completions.create(model="mats", prompt="", extra_body=more)
    assert complete(client, "", max_tokens=9, session="b").choices[0].text == expected.draw(9)[0]
    assert call(url, "DELETE", "/v1/sessions/b")[0] == 200


@pytest.mark.parametrize("session", ["", "a/b"])
def test_a_session_of_any_name_can_be_deleted(session, url):
    body = {**PROMPT, "max_tokens": 1, "session": session}
    assert call(url, "POST", "/v1/completions", body)[0] == 200
    found = call(url, "DELETE", f"/v1/sessions/{session}")
    assert found == (200, {"session": session, "deleted": True})


def test_requests_at_once_have_their_own_texts(client, lm):
    seeds = range(7)
    expected = [lm.generate("a cat", max_new_tokens=64, seed=seed) for seed in seeds]
    with concurrent.futures.ThreadPoolExecutor(7) as pool:
        found = pool.map(lambda seed: complete(client, "a cat", max_tokens=64, seed=seed), seeds)
        assert [answer.choices[0].text for answer in found] == expected


def test_scores_are_those_of_the_package(url, lm):
    texts = ["the cat sat on the mat\na cat", "", "a cat"]
    status, found = call(url, "POST", "/v1/score", {"texts": texts, "per_token": True})
    assert (status, found["model"]) == (200, "mats")
    for entry, score in zip(found["scores"], lm.score(texts), strict=True):
        assert entry["tokens"] == score.tokens
        assert entry["ids"] == score.ids.tolist()
        assert entry["nats"] == pytest.approx(score.nats.tolist(), abs=2e-6)
        assert entry["total_nats"] == pytest.approx(score.total_nats, abs=2e-5)
        assert (entry["n_bytes"], entry["bpc"]) == (score.n_bytes, None)
    assert found["scores"][1]["perplexity"] is None
    (entry,) = call(url, "POST", "/v1/score", {"texts": "a cat", "prefix": "\n"})[1]["scores"]
    assert entry["tokens"] == 2
    assert "nats" not in entry


def test_scores_of_many_texts_take_turns_with_other_requests(client, url):
    body = json.dumps({"texts": ["a cat"] * (MANY // 10)}).encode()
    netloc = urllib.parse.urlsplit(url).netloc
    with contextlib.closing(http.client.HTTPConnection(netloc, timeout=WAIT)) as connection:
        connection.request("POST", "/v1/score", body)
        for _ in range(2):  # the first may come before the scores
            complete(client, "the cat", max_tokens=1)
        assert select.select([connection.sock], [], [], 0)[0] == []  # no answer yet


LARGE = b" " * (4 * 2**20 + 1)
PROMPT = {"prompt": "the cat"}
KNOWN = "only the 7 words of the vocabulary are known. Received: 1 unknown ('dog')"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "completions", b"{", 400, "the body must be JSON"),
        ("POST", "completions", LARGE, 413, "the body must have at most 4,194,304 bytes"),
        ("GET", "completions", None, 405, "Method Not Allowed: GET /v1/completions"),
        ("POST", "chat/completions", {}, 404, "this is a plain language model: use /v1/compl"),
        (
            "POST",
            "completions",
            {**PROMPT, "model": "b"},
            404,
            "there is no model 'b', only 'mats'",
        ),
        ("POST", "completions", {"prompt": "the dog"}, 400, KNOWN),
        ("POST", "completions", {"prompt": ""}, 400, "`prompt` must hold at least one token"),
        ("POST", "completions", {"prompt": "\ud800"}, 400, "a text is not UTF-8: "),
        ("POST", "completions", {**PROMPT, "stop": "dog"}, 400, "`stops` must be symbols of"),
        ("POST", "completions", {**PROMPT, "top_p": 2}, 400, "`top_p` must be a number in (0, 1]"),
        ("POST", "score", {"texts": ["the dog"]}, 400, KNOWN),
        ("DELETE", "sessions/z", None, 404, "there is no session 'z'"),
    ],
)
def test_a_wrong_request_is_one_line(method, path, body, status, message, url):
    found, answer = call(url, method, f"/v1/{path}", body)
    assert (found, list(answer)) == (status, ["error"])
    error = answer["error"]
    assert error["message"].startswith(message)
    assert "\n" not in error["message"]
    assert error["type"] == "invalid_request_error"


def try_to_continue(client, kind):
    """Continues the session "long" until that ends with an error of a kind; `None` for none."""
    for _ in range(WAIT * 10):
        error = None
        try:
            complete(client, "", max_tokens=5, session="long")
        except openai.APIStatusError as raised:
            error = raised
        if isinstance(error, kind):
            return
        time.sleep(0.1)
    raise AssertionError("the server did not change its mind")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_its_request(stream, client, url):
    """And its session continues where the text has ended."""
    body = {**PROMPT, "max_tokens": MANY, "session": "long", "stream": stream}
    netloc = urllib.parse.urlsplit(url).netloc
    with contextlib.closing(http.client.HTTPConnection(netloc, timeout=WAIT)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body).encode())
        try_to_continue(client, openai.ConflictError)
    try_to_continue(client, type(None))
    assert call(url, "DELETE", "/v1/sessions/long")[0] == 200


def hold_place(url):
    """Returns a connection whose request never sends its body."""
    parts = urllib.parse.urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port), WAIT)
    connection.sendall(b"POST /v1/score HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
    return connection


def find_error(client):
    """Returns the error of a request that finds no place; `None` if it finds one."""
    try:
        complete(client, "the cat", max_tokens=1)
    except openai.InternalServerError as error:
        return error
    return None


def test_a_request_too_many_is_refused_until_a_place_is_free(client, url):
    with contextlib.ExitStack() as stack:
        for _ in range(N_PLACES - 1):
            stack.enter_context(hold_place(url))
        error = None
        for _ in range(N_PLACES):  # places of those that were refused beside our own requests
            stack.enter_context(hold_place(url))
            assert call(url, "GET", "/health")[0] == 200
            error = error or find_error(client)
        assert (error.status_code, error.response.headers["retry-after"]) == (503, "1")
        assert "the server is busy: 64 requests are in progress" in error.message
    for _ in range(WAIT * 10):
        if find_error(client) is None:
            return
        time.sleep(0.1)
    raise AssertionError("no place became free")


@pytest.fixture
def impatient(monkeypatch):
    """An application that reads a body and answers, with bounds of one place and a moment."""
    monkeypatch.setattr(http_app, "_CLIENT_SECONDS", 0.01)
    monkeypatch.setattr(http_app, "_N_PLACES", 1)

    async def read(request):
        return PlainTextResponse(await http_app.read_body(request))

    routes = [Route("/", read, methods=["POST"])]
    handlers = {RequestError: lambda _, error: http_app.make_error(error.status, str(error))}
    return http_app.BoundedApp(Starlette(routes=routes, exception_handlers=handlers))


def post(app, receive, send):
    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b""}
    asyncio.run(app(scope, receive, send))


def test_a_client_that_sends_or_takes_nothing_loses_its_place(impatient):
    async def wait(*_):
        await asyncio.sleep(WAIT)

    async def receive():
        return {"type": "http.request", "body": b"a"}

    async def send(message):
        sent.append(message)

    sent = []
    post(impatient, wait, send)
    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"])["error"]["message"] == "the body did not come within 0.01 s"
    post(impatient, receive, wait)
    sent.clear()
    post(impatient, receive, send)
    assert (sent[0]["status"], sent[1]["body"]) == (200, b"a")


def test_a_port_that_is_taken_is_one_line(folder, url, capsys):
    port = urllib.parse.urlsplit(url).port
    assert txl_tf.programs.serve.main(["serve", f"--run={folder}", f"--port={port}"]) == 1
    error = capsys.readouterr().err
    assert error == f"serve: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_what_is_in_progress(number, folder):
    with start_server(folder) as (process, url):
        with openai.OpenAI(base_url=url, api_key="none", timeout=WAIT) as client:
            stream = complete(client, "the cat", max_tokens=101, stream=True)
            events = iter(stream)
            next(events)
            process.send_signal(number)
            *_, last = events
        assert last.usage.completion_tokens == 101
        assert process.wait(WAIT) == 0
        with pytest.raises(ConnectionRefusedError):
            call(url, "GET", "/health")
