import pytest

from txl_tf.data.files import get_size, join_path, open_file


@pytest.fixture(params=["{}", "file://{}"])
def folder(request, tmp_path):
    """A folder here, or at an address that tensorflow reads."""
    (tmp_path / "a").write_bytes(b"hello there")
    (tmp_path / "d").mkdir()
    return request.param.format(tmp_path)


def test_a_path_has_one_slash_between_folder_and_file():
    assert join_path("gs://bucket/a", "b") == join_path("gs://bucket/a/", "b") == "gs://bucket/a/b"


def test_a_file_is_opened_at_any_byte(folder):
    with open_file(join_path(folder, "a")) as file:
        file.seek(6)
        assert file.read(3) == b"the"


def test_the_size_of_a_file_is_its_bytes(folder):
    assert get_size(join_path(folder, "a")) == 11


def test_a_missing_file_has_no_size(folder):
    assert get_size(join_path(folder, "b")) is None
