import os
import stat
from pathlib import Path

import pytest

from txl_tf.data.temporary_folders import write_aside
from txl_tf.errors import UserError


def write(out, error=None):
    with write_aside(str(out)) as aside:
        Path(aside, "config.json").write_text("{}")
        if error:
            raise error


@pytest.fixture
def set_umask():
    """Sets the umask of this process until the end of the test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def test_a_folder_appears_alone_with_all_its_files(tmp_path):
    write(tmp_path / "runs" / "a")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a"]
    assert (tmp_path / "runs" / "a" / "config.json").read_text() == "{}"


@pytest.mark.parametrize(("umask", "mode"), [(0o027, 0o750), (0o002, 0o775)])
def test_a_folder_has_the_permissions_of_the_umask(tmp_path, set_umask, umask, mode):
    set_umask(umask)
    write(tmp_path / "a")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


def test_a_link_stays_and_the_folder_it_leads_to_is_written(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "there")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "config.json").exists()


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_an_error_leaves_nothing(tmp_path, error):
    with pytest.raises(type(error)):
        write(tmp_path / "runs" / "a", error)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_kept(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        write(tmp_path / "a")
    assert (tmp_path / "a" / "notes").read_text() == "mine"


def test_the_working_folder_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^`\.` cannot be replaced: choose a new folder in it$"):
        write(".")
    assert list(tmp_path.iterdir()) == []
