import errno
import gzip
import hashlib
import re

import pytest

from txl_tf.data import download
from txl_tf.data.download import PublishedFile, fetch
from txl_tf.errors import UserError

CONTENT = b"banana\n" * 1009
SIZE = len(CONTENT)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
OTHER = CONTENT[::-1]
NAME = "fruit.zip"


def list_files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def make_archive(*urls, size=SIZE, sha256=SHA256):
    return PublishedFile(NAME, urls, size, sha256)


def fail_to_fetch(archive, raw_dir):
    """Returns the message of the one error that is expected, which must be one line."""
    with pytest.raises(UserError) as caught:
        fetch(archive, raw_dir)
    message = str(caught.value)
    assert "\n" not in message
    return message


# Downloading


def test_a_missing_file_is_downloaded(serve, tmp_path):
    path = fetch(make_archive(serve("/fruit")), tmp_path / "raw" / "fruit")
    assert path == tmp_path / "raw" / "fruit" / NAME
    assert path.read_bytes() == CONTENT
    assert list_files(path.parent) == [NAME]


def test_a_file_that_is_there_needs_no_network(server, serve, tmp_path):
    archive = make_archive(serve("/fruit"), serve("/second"))
    fetch(archive, tmp_path)
    assert fetch(archive, tmp_path).read_bytes() == CONTENT
    assert server.requested == ["/fruit"]


def test_a_mirror_with_a_wrong_hash_gives_way_to_the_next(serve, tmp_path, capsys):
    urls = serve("/wrong", OTHER), serve("/right")
    path = fetch(make_archive(*urls), tmp_path)
    assert path.read_bytes() == CONTENT
    found = hashlib.sha256(OTHER).hexdigest()
    line = f"{urls[0]} failed: its SHA-256 is {found} instead of {SHA256}\n"
    assert line in capsys.readouterr().out


def test_a_mirror_that_lacks_the_file_gives_way_to_the_next(server, serve, tmp_path, capsys):
    urls = serve("/gone", b"sorry", status=404), serve("/right")
    assert fetch(make_archive(*urls), tmp_path).read_bytes() == CONTENT
    assert server.requested == ["/gone", "/right"]
    assert f"{urls[0]} failed: it answers 404 Not Found\n" in capsys.readouterr().out


def test_no_network_ends_as_a_line_that_says_what_to_do(closed_url, tmp_path, capsys):
    message = fail_to_fetch(make_archive(closed_url), tmp_path)
    assert message == (
        f"`{NAME}` could not be downloaded: {closed_url} (Connection "
        f"refused). Download it in another way and put it into `{tmp_path}`."
    )
    out, err = capsys.readouterr()
    assert f"{closed_url} failed: " in out
    assert err == ""
    assert list_files(tmp_path) == []


def test_the_line_names_every_mirror(serve, closed_url, tmp_path):
    urls = serve("/gone", status=404), closed_url, serve("/wrong", OTHER)
    message = fail_to_fetch(make_archive(*urls), tmp_path)
    assert re.findall(r"http\S+", message) == list(urls)
    assert list_files(tmp_path) == []


def test_a_file_is_kept_as_it_is_sent(server, serve, tmp_path):
    body = gzip.compress(CONTENT)
    url = serve("/fruit.tgz", body, Content_Encoding="x-gzip")
    path = fetch(PublishedFile("fruit.tgz", (url,), size=len(body)), tmp_path)
    assert path.read_bytes() == body
    assert server.headers[0]["Accept-Encoding"] == "identity"


# Files that are there


def test_a_file_of_another_size_is_refused(server, serve, tmp_path):
    (tmp_path / NAME).write_bytes(CONTENT[:-1])
    message = fail_to_fetch(make_archive(serve("/fruit")), tmp_path)
    assert message == (
        f"`{tmp_path / NAME}` is not the expected file: it has 7,062 bytes instead of 7,063. "
        "Delete it and run again."
    )
    assert server.requested == []
    assert (tmp_path / NAME).exists()


def test_a_hash_that_is_not_published_is_recorded(serve, tmp_path, capsys):
    fetch(make_archive(serve("/fruit"), sha256=None), tmp_path)
    assert (tmp_path / "SHA256SUMS").read_text() == f"{SHA256}  {NAME}\n"
    assert "SHA256SUMS` now records it" in capsys.readouterr().out
    assert list_files(tmp_path) == ["SHA256SUMS", NAME]


def test_the_record_keeps_its_other_lines(tmp_path):
    other = f"{'0' * 64} *vegetable.zip"  # without a line break
    (tmp_path / "SHA256SUMS").write_text(other)
    (tmp_path / NAME).write_bytes(CONTENT)
    fetch(make_archive(sha256=None), tmp_path)
    assert (tmp_path / "SHA256SUMS").read_text() == f"{other}\n{SHA256}  {NAME}\n"


def test_a_file_that_changed_since_it_was_recorded_is_refused(tmp_path):
    archive = make_archive("http://host/fruit", sha256=None)
    (tmp_path / NAME).write_bytes(CONTENT)
    fetch(archive, tmp_path)
    (tmp_path / NAME).write_bytes(OTHER)
    message = fail_to_fetch(archive, tmp_path)
    assert f"instead of {SHA256}. Delete it and run again. If you changed it on purpose" in message
    assert (tmp_path / "SHA256SUMS").read_text() == f"{SHA256}  {NAME}\n"


def test_a_file_can_be_used_where_nothing_can_be_recorded(tmp_path, monkeypatch, capsys):
    def refuse(path, text):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(download, "write_text", refuse)
    (tmp_path / NAME).write_bytes(CONTENT)
    assert fetch(make_archive(sha256=None), tmp_path)
    assert "is not recorded: Permission denied" in capsys.readouterr().err


# Transfers that are no whole file

CHUNKED = b"Transfer-Encoding: chunked\r\n"


def answer(*parts, headers=b"", then=lambda handler: None):
    """Returns what answers without a length, then continues in another way."""

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


def get_fault(url, raw_dir, size=SIZE, sha256=None):
    message = fail_to_fetch(make_archive(url, size=size, sha256=sha256), raw_dir)
    assert list_files(raw_dir) == []
    return message.partition(f"{url} (")[2].partition("). Download it")[0]


def test_a_body_without_a_length_is_taken_where_it_can_be_compared(serve, tmp_path):
    url = serve("/fruit", answer(CONTENT))
    assert fetch(make_archive(url, size=None), tmp_path / "hash").read_bytes() == CONTENT
    assert fetch(make_archive(url, sha256=None), tmp_path / "size").read_bytes() == CONTENT
    fault = get_fault(url, tmp_path / "none", size=None)
    assert fault == "its response has no length: it may be incomplete"


def test_chunks_that_end_early_are_refused(serve, tmp_path):
    parts = [chunk(CONTENT[:53]), chunk(CONTENT[53:])]
    url = serve("/fruit", answer(*parts, b"0\r\n\r\n", headers=CHUNKED))
    assert fetch(make_archive(url, size=None), tmp_path / "raw").read_bytes() == CONTENT
    url = serve("/cut", answer(*parts, headers=CHUNKED))
    assert get_fault(url, tmp_path / "cut", size=None, sha256=SHA256)


@pytest.mark.parametrize("size", [SIZE, None])
def test_short_bodies_are_refused(serve, tmp_path, size):
    length = b"Content-Length: %d\r\n" % SIZE
    fault = get_fault(serve("/cut", answer(CONTENT[:-1], headers=length)), tmp_path / "cut", size)
    assert "IncompleteRead" in fault


def test_a_body_without_a_length_has_the_published_one(serve, tmp_path):
    fault = get_fault(serve("/cut", answer(CONTENT[:-1])), tmp_path / "cut")
    assert fault == "it has 7,062 bytes instead of 7,063"
    url = serve("/endless", answer(headers=CHUNKED, then=repeat(chunk(b"b" * 1009))))
    assert get_fault(url, tmp_path / "endless") == "it sends more than 7,063 bytes"


def test_an_empty_body_is_refused(serve, tmp_path):
    url = serve("/empty", answer(headers=b"Content-Length: 0\r\n"))
    assert "has no length" in get_fault(url, tmp_path / "raw", size=None)


def test_a_silent_body_is_given_up(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "_TIMEOUT", 0.1)
    body = answer(b"a" * 53, then=lambda handler: handler.rfile.read())
    assert "timed out" in get_fault(serve("/silent", body), tmp_path / "raw")


@pytest.mark.parametrize("status", [206, 404])
def test_an_answer_that_is_no_whole_file_is_refused(serve, tmp_path, status):
    assert get_fault(serve("/odd", status=status), tmp_path / "raw").startswith(
        f"it answers {status} "
    )


def test_a_redirection_to_a_file_of_this_machine_is_refused(serve, tmp_path):
    url = serve("/old", b"", status=302, Location="file:///etc/hosts")
    assert "No connection adapters" in get_fault(url, tmp_path / "raw")
