import errno
import io
import os
import tarfile
from pathlib import Path

import pytest

from txl_tf.data.download import unpack
from txl_tf.errors import UserError

FILES = {
    "./pie/data/apple.txt": b"apple\n" * 101,
    "./pie/data/pear.txt": b"pear\n" * 103,
    "./pie/README": b"eat\n",
}
UNPACKED = ["pie", "pie/README", "pie/data", "pie/data/apple.txt", "pie/data/pear.txt"]


def list_files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def make_tar(path, files, **member):
    """Writes an archive; `member` are the attributes of a last one, called "odd"."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        if member:
            info = tarfile.TarInfo("odd")
            for key, value in member.items():
                setattr(info, key, value)
            archive.addfile(info)
    return path


def fail_to_unpack(archive, tmp_path):
    with pytest.raises(UserError) as caught:
        unpack(archive, tmp_path / "out")
    message = str(caught.value)
    assert "\n" not in message
    assert list_files(tmp_path) in ([archive.name], sorted([archive.name, "out"]))
    return message


def test_an_archive_is_unpacked(tmp_path):
    unpack(make_tar(tmp_path / "pie.tgz", FILES), tmp_path / "out")
    assert list_files(tmp_path / "out") == UNPACKED
    for name, content in FILES.items():
        assert (tmp_path / "out" / name).read_bytes() == content


def test_an_archive_without_files_is_refused(tmp_path):
    archive = make_tar(tmp_path / "pie.tgz", {})
    assert fail_to_unpack(archive, tmp_path) == f"`{archive}` holds no files"


def test_a_member_that_leaves_the_folder_is_refused(tmp_path):
    archive = make_tar(tmp_path / "pie.tgz", {**FILES, "pie/../../evil": b"evil"})
    message = fail_to_unpack(archive, tmp_path)
    assert message.startswith(f"`{archive}` is not safe to unpack: 'pie/../../evil' would")


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        ({"type": tarfile.SYMTYPE, "linkname": "../../evil"}, "outside the destination"),
        ({"type": tarfile.LNKTYPE, "linkname": "../../evil"}, "outside the destination"),
        ({"type": tarfile.FIFOTYPE}, "special file"),
    ],
)
def test_a_link_out_of_the_folder_or_a_device_is_refused(member, reason, tmp_path):
    archive = make_tar(tmp_path / "pie.tgz", FILES, **member)
    message = fail_to_unpack(archive, tmp_path)
    assert message.startswith(f"`{archive}` is not safe to unpack: 'odd' ")
    assert reason in message


@pytest.mark.parametrize("damage", ["cut", "changed", "another"])
def test_a_damaged_archive_is_refused(damage, tmp_path):
    archive = make_tar(tmp_path / "pie.tgz", FILES)
    content = bytearray(archive.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "changed":
        content[len(content) // 3] ^= 0xFF
    else:
        content = b"<html>We are down.</html>" * 101
    archive.write_bytes(content)
    message = fail_to_unpack(archive, tmp_path)
    assert message.startswith(f"`{archive}` is damaged: ")
    assert message.endswith(". Delete it and run again.")


def break_copying(monkeypatch, error):
    """Lets the first file be written, and half of the second."""
    calls = []

    def copy(source, target, *args, **kwargs):
        calls.append(target)
        content = source.read()
        target.write(content if len(calls) == 1 else content[: len(content) // 2])
        if len(calls) == 2:
            raise error

    monkeypatch.setattr("tarfile.copyfileobj", copy)


def test_a_full_disk_while_unpacking_leaves_nothing(tmp_path, monkeypatch):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    archive = make_tar(tmp_path / "pie.tgz", FILES)
    break_copying(monkeypatch, full)
    message = fail_to_unpack(archive, tmp_path)
    assert message == (
        f"`{archive}` could not be unpacked into `{tmp_path / 'out'}`: No space left on device"
    )


def test_files_are_under_their_names_only_once_they_are_whole(tmp_path, monkeypatch):
    """A killed program cleans nothing up: what it leaves must not look like the files."""
    archive = make_tar(tmp_path / "pie.tgz", FILES)
    moved = []

    def look(path, target):
        (aside,) = (tmp_path / "out").glob("pie.tgz.part-*")
        assert list_files(aside) == UNPACKED
        assert path.read_bytes() == FILES[f"./{path.relative_to(aside)}"]
        assert not target.exists()
        moved.append(target.name)

    monkeypatch.setattr(Path, "replace", look)
    unpack(archive, tmp_path / "out")
    assert len(moved) == len(FILES)
