"""Pieces of texts, which many workers read."""

import itertools

import pytest

from txl_tf.apps.beam.file_ranges import divide_files, find_range, resume_documents
from txl_tf.data.text.documents import RULES, DocumentFinder
from txl_tf.data.text.text_files import TextFile, TextSource
from txl_tf.errors import UserError

TEXTS = {
    "blank": b"\n \n\t\nja\n\n",
    "title": b" \n = A = \n\nja\n = B = \n\n \n = C = \n = = D = = \nb\n\n = E = \n",
    "separator": b"ja\nja\n\n  ja \nx\nja x\nja\n\nja",
    "long": b"x" * 97 + b"\n\n" + b"y" * 89,
    "none": b"x" * 61,
    "breaks": b"\n" * 23,
    "empty": b"",
}


def write(folder, name):
    path = folder / f"{name}.txt"
    path.write_bytes(TEXTS[name])
    return TextFile(path)


def read(file):
    return b"".join(file.iterate_blocks())


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 41, 1000])
@pytest.mark.parametrize("name", TEXTS)
def test_ranges_are_whole_lines_and_add_up_to_the_file(tmp_path, name, piece_bytes):
    pieces = divide_files([write(tmp_path, name)], piece_bytes)
    texts = [read(find_range(file, piece_bytes)) for (file,) in pieces]
    assert b"".join(texts) == TEXTS[name]
    filled = [text for text in texts if text]
    assert all(text.endswith(b"\n") for text in filled[:-1])


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("rule", RULES)
def test_documents_begin_at_the_same_places_wherever_a_text_is_divided(tmp_path, rule, name):
    file = write(tmp_path, name)
    expected = find_begins(file, rule)
    cuts = [0, *(i + 1 for i, byte in enumerate(TEXTS[name]) if byte == 10), len(TEXTS[name])]
    for start, stop in itertools.combinations(cuts, 2):
        part = TextFile(file.path, None, start, stop, start > 0)
        inside = [begin for begin in expected if start <= begin < stop]
        assert find_begins(part, rule) == inside, (start, stop)


def find_begins(file, rule):
    finder = DocumentFinder(rule, "ja" if rule == "separator" else None)
    resume_documents(finder, file)
    begins, place = [], file.start
    for chunk in TextSource((file,), "byte").iterate_chunks():
        begins += (finder.find(chunk) + place).tolist()
        place += len(chunk.text)
    return begins


def test_a_line_before_a_range_is_found_however_far_it_is(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x\nja\n" + b" \n" * 2**17 + b"x\n")
    for gap, expected in ((0, [5]), (2**18, [])):
        file = TextFile(path, None, 5 + gap, None, True)
        assert find_begins(file, "separator") == expected


def test_small_files_share_a_piece_and_stay_in_order(tmp_path):
    files = [write(tmp_path, name) for name in TEXTS]
    pieces = list(divide_files(files, 67))
    paths = [file.path for piece in pieces for file in piece]
    assert list(dict.fromkeys(paths)) == [file.path for file in files]
    assert max(sum(file.size for file in piece) for piece in pieces) <= 67
    assert any(len(piece) > 1 for piece in pieces)


def test_packed_files_and_whole_files_are_not_divided(tmp_path):
    (tmp_path / "a.gz").write_bytes(bytes(61))
    packed, plain = TextFile(tmp_path / "a.gz"), write(tmp_path, "long")
    assert list(divide_files([packed], 7)) == [(packed,)]
    assert list(divide_files([plain], 7, ranges=False)) == [(plain,)]


def test_an_error_in_a_range_names_the_line_of_the_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\nb\nc\nd\n\xff\n")
    ranges = [find_range(file, 3) for (file,) in divide_files([TextFile(path)], 3)]
    assert [file.start for file in ranges] == [0, 4, 6, 10]
    with pytest.raises(UserError, match=r"line 5, byte offset 8: byte 0xff"):
        list(TextSource((ranges[2],), "char").iterate_chunks())
