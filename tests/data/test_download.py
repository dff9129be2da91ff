import errno
import gzip
import hashlib
import re

import pytest

from txl_tf.data import download
from txl_tf.data.download import DownloadError, PublishedFile, fetch

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
    with pytest.raises(DownloadError) as caught:
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
        f"`{NAME}` could not be downloaded: {closed_url} ([Errno {errno.ECONNREFUSED}] Connection "
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
    other = f"{'0' * 64} *vegetable.zip"
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
    def refuse(folder, name):
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(download, "work_aside", refuse)
    (tmp_path / NAME).write_bytes(CONTENT)
    assert fetch(make_archive(sha256=None), tmp_path)
    assert "is not recorded: [Errno 13] Permission denied" in capsys.readouterr().err
