import re
import resource
import signal
import subprocess
import sys
import threading

import pytest

from txl_tf.data import transfer as module
from txl_tf.data.transfer import TransferError, transfer

CONTENT = b"banana\n" * 1009
SIZE = len(CONTENT)
CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "fruit.zip"


def answer(*parts, headers=b"", then=lambda handler: None):
    """Returns what answers without a length, then goes on in another way."""

    def write(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + headers + b"\r\n")
        for part in parts:
            handler.wfile.write(part)
        then(handler)

    return write


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def repeat(data):
    def write(handler):
        while True:
            handler.wfile.write(data)

    return write


def repeat_slowly(data):
    def write(handler):
        while True:
            handler.wfile.write(data)
            threading.Event().wait(0.02)

    return write


def get_fault(url, path, **options):
    with pytest.raises(TransferError) as caught:
        transfer(url, path, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


# Size


@pytest.mark.parametrize("options", [{"size": SIZE}, {"is_hashed": True}])
def test_a_body_without_a_length_is_taken_where_it_can_be_compared(serve, path, options):
    transfer(serve("/fruit", answer(CONTENT)), path, **options)
    assert path.read_bytes() == CONTENT


def test_a_body_that_nothing_can_be_compared_with_is_refused(serve, path):
    message = get_fault(serve("/fruit", answer(CONTENT)), path)
    assert message == "its response has no length, so it may be incomplete"


def test_chunks_say_where_they_end(serve, path):
    body = answer(chunk(CONTENT[:53]), chunk(CONTENT[53:]), b"0\r\n\r\n", headers=CHUNKED)
    transfer(serve("/fruit", body), path)
    assert path.read_bytes() == CONTENT


def test_a_body_without_a_length_that_ends_early_is_refused(serve, path):
    message = get_fault(serve("/cut", answer(CONTENT[:-1])), path, size=SIZE)
    assert message == "it sent 7,062 bytes instead of 7,063"


@pytest.mark.parametrize("parts", [[chunk(CONTENT)], [chunk(CONTENT)[:-101]]])
def test_chunks_that_end_early_are_refused(serve, path, parts):
    assert get_fault(serve("/fruit", answer(*parts, headers=CHUNKED)), path)


def test_no_more_than_the_expected_bytes_are_written(serve, path):
    url = serve("/endless", answer(headers=CHUNKED, then=repeat(chunk(b"b" * 1009))))
    message = get_fault(url, path, size=SIZE)
    assert message == "it sends more than 7,063 bytes"
    assert path.stat().st_size <= SIZE


def test_a_file_of_unknown_size_has_a_limit(serve, path, monkeypatch):
    monkeypatch.setattr(module, "_LARGEST", SIZE - 1)
    url = serve("/endless", answer(headers=CHUNKED, then=repeat(chunk(b"a" * 1009))))
    assert get_fault(url, path) == "it sends more than 7,062 bytes"
    assert "which is more than 7,062" in get_fault(serve("/large"), path)


def test_another_length_is_refused_before_the_body(serve, path):
    url = serve("/long", answer(headers=b"Content-Length: 8000\r\n", then=repeat(b"a")))
    assert get_fault(url, path, size=SIZE) == "its file has 8,000 bytes instead of 7,063"
    assert path.stat().st_size == 0


@pytest.mark.parametrize("length", ["many", "-7"])
def test_a_senseless_length_is_refused(serve, path, length):
    url = serve("/odd", answer(CONTENT, headers=f"Content-Length: {length}\r\n".encode()))
    assert get_fault(url, path, size=SIZE)


# Speed


def test_a_silent_body_is_given_up(serve, path, monkeypatch):
    monkeypatch.setattr(module, "_WINDOW", 0.1)
    url = serve("/silent", answer(b"a" * 53, then=lambda handler: handler.rfile.read()))
    assert get_fault(url, path, size=SIZE) == "it is too slow: 0 bytes in 0.1 seconds"


def test_a_body_that_trickles_is_given_up(serve, path, monkeypatch):
    monkeypatch.setattr(module, "_WINDOW", 0.1)
    body = answer(headers=CHUNKED, then=repeat_slowly(chunk(b"a")))
    assert "it is too slow" in get_fault(serve("/slow", body), path, size=SIZE)


def test_headers_that_trickle_are_given_up(serve, path, monkeypatch):
    monkeypatch.setattr(module, "_WINDOW", 0.1)
    assert "it is too slow" in get_fault(serve("/slow", repeat_slowly(b"a")), path)


def test_a_speed_below_the_least_average_is_given_up(serve, path, monkeypatch):
    monkeypatch.setattr(module, "_GRACE", 0)
    monkeypatch.setattr(module, "_LEAST_AVERAGE", 2**60)
    message = get_fault(serve("/slow"), path)
    assert re.fullmatch(r"it is too slow: [\d,]+ bytes in 0 seconds", message)


# Answers that are no file


@pytest.mark.parametrize("status", [206, 404])
def test_an_answer_that_is_no_whole_file_is_refused(serve, path, status):
    assert get_fault(serve("/odd", status=status), path).startswith(f"it answers {status} ")


def test_the_body_of_a_redirection_is_not_read(serve, path):
    def redirect(handler):
        handler.wfile.write(b"HTTP/1.1 302 Found\r\nLocation: /fruit\r\n\r\n")
        repeat(b"a" * 1009)(handler)

    serve("/fruit")
    transfer(serve("/old", redirect), path)
    assert path.read_bytes() == CONTENT


def test_a_redirection_to_a_file_of_this_machine_is_refused(serve, path):
    url = serve("/old", b"", status=302, Location="file:///etc/hosts")
    assert "No connection adapters" in get_fault(url, path)


# Interruptions and full disks, in a program of their own

PROGRAM = """
import sys
from pathlib import Path
from txl_tf.data.download import PublishedFile, DownloadError, fetch
try:
    fetch(PublishedFile("fruit.zip", (sys.argv[1],)), Path(sys.argv[2]))
except DownloadError as error:
    sys.exit(str(error))
"""


def obey_interrupts():
    """A shell that starts the tests in the background has them, and what they start, ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(url, folder, **options):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_an_interrupted_program_ends_at_once_and_leaves_nothing(serve, tmp_path):
    is_asked = threading.Event()

    def stall(handler):
        is_asked.set()
        handler.rfile.read()

    url = serve("/stall", answer(headers=b"Content-Length: 7063\r\n", then=stall))
    with start(url, tmp_path, preexec_fn=obey_interrupts) as program:
        assert is_asked.wait(60)
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_grow_ends_as_a_line_and_leaves_nothing(serve, tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4099, 4099))

    with start(serve("/fruit"), tmp_path, preexec_fn=limit) as program:
        _, errors = program.communicate(timeout=60)
    assert program.returncode == 1
    assert errors == (f"`fruit.zip` could not be downloaded into `{tmp_path}`: File too large\n")
    assert list(tmp_path.iterdir()) == []
