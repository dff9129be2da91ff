"""The page on which people try a model: as clients call it, and in a browser."""

import html
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from urllib.parse import urlsplit

import numpy as np
import pytest
from called_programs import drop_banner
from places import ROOT
from small_language_model import make_model

import txl_tf
from txl_tf.data import Vocabulary
from txl_tf.lab.shown_tokens import show_controls

pytest.importorskip("gradio", reason="pip install -e '.[app]'")

from gradio_client import Client
from gradio_client.exceptions import AppError

BYTES = Vocabulary("byte", tuple(map(str, range(256))))
PROGRAM = ROOT / "examples" / "app.py"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PROMPT = "<b>one</b> ${1+1} {{value}}"
SETTINGS = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "seed": 3}
TEXT = "</script>one & another line\n" * 3


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("app") / "run"
    make_model(256, vocabulary=BYTES, mem_len=31, tgt_len=13).save(folder)
    return folder


def start_app(run, *arguments):
    """Starts the program, and returns its process and the URL that it prints."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, str(PROGRAM), f"--run={run}", f"--port={port}", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # pytest may ignore it
    )
    line = process.stdout.readline()
    assert line == f"{run} is at http://127.0.0.1:{port}/ until Ctrl-C\n", process.stderr.read()
    return process, f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def url(run):
    process, url = start_app(run, "--max_tokens=211")
    yield url
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    # Ctrl-C ends it quietly
    assert (process.returncode, out, drop_banner(err)) == (0, "", "")


@pytest.fixture
def client(url):
    return Client(url, verbose=False, analytics_enabled=False)


def call_start(client, prompt=PROMPT, length=40, **changes):
    return client.predict(prompt=prompt, length=length, **SETTINGS | changes, api_name="/start")


def read_text(view):
    grown = view[view.index('<div class="grown') :]
    return html.unescape(re.sub("<[^>]*>", "", grown))


def test_a_text_continues_as_generate_does_and_users_have_their_own(run, url, client):
    lm, other = txl_tf.load(run), Client(url, verbose=False, analytics_enabled=False)
    expected = show_controls(PROMPT + lm.generate(PROMPT, max_new_tokens=60, **SETTINGS))
    assert expected.startswith(read_text(call_start(client)))
    call_start(other, "another", seed=5)
    view = client.predict(length=20, api_name="/continue")
    assert read_text(view) == expected
    assert "memory: 31 of 31 tokens" in view
    client.predict(api_name="/forget")
    with pytest.raises(AppError, match="there is no text to continue: start one"):
        client.predict(length=20, api_name="/continue")
    added = lm.generate("another", max_new_tokens=43, **SETTINGS | {"seed": 5})
    view = other.predict(length=3, api_name="/continue")
    assert read_text(view) == show_controls("another" + added)


def test_a_text_is_seen_while_it_is_drawn(client):
    job = client.submit(prompt=PROMPT, length=150, **SETTINGS, api_name="/start")
    texts = [read_text(view) for view in job]
    assert texts[0] == PROMPT
    assert all(after.startswith(before[:-3]) for before, after in itertools.pairwise(texts))


def test_the_surprisal_is_that_of_score(run, client):
    frame = client.predict(text=TEXT, api_name="/surprisal")
    (score,) = txl_tf.load(run).score([TEXT])
    page = html.unescape(re.search('srcdoc="([^"]*)"', frame)[1])
    assert f"<dd>{score.describe()}</dd>" in page


def test_wrong_input_is_answered_in_one_line(client):
    with pytest.raises(AppError, match=r"must hold at least one token\. Received: an empty text"):
        call_start(client, "")
    with pytest.raises(AppError, match=r"at most 211 tokens\. Received: 212 tokens"):
        client.predict(text="a" * 212, api_name="/surprisal")
    with pytest.raises(AppError, match="`seed` must be a number"):
        call_start(client, seed=None)
    with pytest.raises(AppError, match=r"`token` must be from 0 to 83\. Received: 84"):
        client.predict(text=TEXT[:84], layer=0, head=1, token=84, api_name="/attention")


def test_an_address_in_use_is_refused(run, url):
    port = urlsplit(url).port
    command = [sys.executable, str(PROGRAM), f"--run={run}", f"--port={port}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")
    place = f"127.0.0.1, port {port}"
    assert ran.stderr == f"app.py: the app cannot listen at {place}: Address already in use\n"


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="pip install -e '.[test-extras]'"
    )
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def test_all_tabs_work_in_a_narrow_browser_that_asks_nobody_else(run, url, browser):
    page = browser.new_page(viewport={"width": 390, "height": 800})
    hosts, faults = set(), []
    page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
    page.on("pageerror", lambda fault: faults.append(fault))
    page.goto(url)
    assert page.get_by_role("button", name="Continue").is_disabled()  # there is no text yet
    page.get_by_label("Prompt").fill(PROMPT)
    page.get_by_role("button", name="Start").click()
    prompt = BYTES.encode(PROMPT)
    added = txl_tf.load(run).generate(prompt, max_new_tokens=211, temperature=0.95, top_k=40)
    expected = show_controls(BYTES.decode(np.concatenate([prompt, added])[-211:]))
    is_shown = "(text) => document.querySelector('.grown')?.textContent === text"
    page.wait_for_function(is_shown, arg=expected)
    page.get_by_role("button", name="Forget").click()
    page.get_by_text("the memory is empty").wait_for()
    page.get_by_role("tab", name="Attention").click()
    page.locator("textarea >> visible=true").fill(TEXT)
    page.locator("button:text('Read') >> visible=true").click()
    frame = page.frame_locator("iframe.page")
    frame.get_by_role("heading", name=f"Token {len(TEXT) - 1}").wait_for()
    assert frame.locator("#text .key.old").count() > 0  # in the memory
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("textarea >> visible=true").fill("a" * 212)
    page.locator("button:text('Read') >> visible=true").click()
    page.get_by_text("at most 211 tokens. Received: 212 tokens").wait_for()
    assert page.locator("span.error:not(.toast-title)").count() == 0
    assert (hosts, faults) == ({"127.0.0.1"}, [])
    page.close()
