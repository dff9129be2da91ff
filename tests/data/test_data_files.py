import hashlib

import pytest

from txl_tf.data.files import (
    check_folder,
    get_size,
    hash_file,
    join_path,
    open_file,
    read_json,
    read_text,
)
from txl_tf.errors import UserError


@pytest.fixture(params=["{}", "file://{}"])
def folder(request, tmp_path):
    """A folder here, or at an address that tensorflow reads."""
    (tmp_path / "a").write_bytes(b"hello there")
    (tmp_path / "d").mkdir()
    return request.param.format(tmp_path)


def test_a_file_is_read_measured_and_hashed_wherever_it_is(folder):
    assert get_size(join_path(folder, "a")) == 11
    assert get_size(join_path(folder, "b")) is None
    assert hash_file(join_path(f"{folder}/", "a")) == hashlib.sha256(b"hello there").hexdigest()
    with open_file(join_path(folder, "a")) as file:
        file.seek(6)
        assert file.read(3) == b"the"


def test_a_link_that_leads_nowhere_is_no_place_for_a_folder(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match=rf"`{tmp_path}/link/run` must be a folder. .*link, which"):
        check_folder(f"{tmp_path}/link/run")


@pytest.mark.parametrize("name", ["d", "d/e", "new/run"])
def test_a_folder_may_be_there_or_be_made(folder, name):
    check_folder(join_path(folder, name))


def test_a_byte_order_mark_is_no_part_of_a_text(folder, tmp_path):
    (tmp_path / "b").write_bytes('\ufeff{"a": 5}'.encode())
    assert read_text(join_path(folder, "b")) == '{"a": 5}'
    assert read_json(join_path(folder, "b")) == {"a": 5}


def test_a_text_in_another_encoding_is_named_with_the_byte_and_a_remedy(tmp_path):
    (tmp_path / "b").write_bytes("schön".encode("latin-1"))
    with pytest.raises(
        UserError, match=r"b` is not UTF-8: byte 0xf6 at offset 3 .* iconv -f LATIN1"
    ):
        read_text(f"{tmp_path}/b")
