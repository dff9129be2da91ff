import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from txl_tf.data.files import (
    append_json_line,
    check_folder,
    get_size,
    hash_file,
    join_path,
    open_file,
    read_json,
    read_json_lines,
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


def test_a_line_stands_on_its_own_after_a_truncated_one(folder):
    path = join_path(folder, "lines.jsonl")
    assert read_json_lines(path) == []
    append_json_line(path, {"step": 1})
    with open(path.removeprefix("file://"), "a") as file:
        file.write('{"step": 2, "lo')
    for step in (3, 4):
        append_json_line(path, {"step": step})
    assert read_json_lines(path) == [{"step": 1}, {"step": 3}, {"step": 4}]


def test_lines_of_several_writers_stay_whole(tmp_path):
    path = str(tmp_path / "lines.jsonl")
    records = [{"writer": writer, "text": "x" * 3000} for writer in range(200)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda record: append_json_line(path, record), records))
    assert sorted(read_json_lines(path), key=lambda record: record["writer"]) == records
