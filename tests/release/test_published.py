import pytest

from txl_tf.errors import UserError
from txl_tf.programs.import_release import fetch_model, list_files


def put(serve, name, folder, *, without=()):
    """Serves the files of a model in a folder, and returns the server's address."""
    paths = [path for path in list_files(name) if path not in without]
    urls = [serve(f"/{folder}/{path}", f"{name} {path}".encode()) for path in paths]
    return urls[0].split(f"/{folder}/")[0]


@pytest.mark.parametrize(("name", "remote"), [("tf_lm1b", "tf_lm1b"), ("tf_enwik8", "tf_enwiki8")])
def test_every_file_of_a_model_comes_to_its_place(name, remote, serve, tmp_path):
    """The server calls one folder enwiki8; one model has another step."""
    there = fetch_model(name, tmp_path / "raw", server=put(serve, name, remote))
    files = {
        path.relative_to(there).as_posix(): path.read_text()
        for path in there.rglob("*")
        if path.is_file() and path.name != "SHA256SUMS"
    }
    assert files == {path: f"{name} {path}" for path in list_files(name)}


def test_existing_files_are_checked_and_kept(serve, server, tmp_path):
    url = put(serve, "tf_text8", "tf_text8")
    there = fetch_model("tf_text8", tmp_path, server=url)
    server.pages.clear()
    assert fetch_model("tf_text8", tmp_path, server=url) == there
    (there / "model" / "checkpoint").write_text("changed")
    with pytest.raises(UserError, match=r"checkpoint` is not the expected file: its SHA-256"):
        fetch_model("tf_text8", tmp_path, server=url)


def test_a_file_that_the_server_lacks_is_named(serve, tmp_path):
    url = put(serve, "tf_text8", "tf_text8", without=("data/cache.pkl",))
    with pytest.raises(UserError, match=r"`cache.pkl` could not be downloaded: .*404"):
        fetch_model("tf_text8", tmp_path, server=url)
