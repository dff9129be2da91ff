import gzip
import lzma
import os
import random
import zipfile

import pytest

from txl_tf.data.text.text_files import TextFile, TextSource, find_files
from txl_tf.errors import UserError

LEVELS = ["char", "word"]
TEXT = "Zwölf Boxkämpfer\njagen Viktor 文字🜁 quer\n\nüber den großen\n".encode() * 3


@pytest.fixture
def small_chunks(monkeypatch):
    """Lets files be read in blocks of 13 bytes."""
    monkeypatch.setattr(TextFile.iterate_blocks, "__defaults__", (13,))


def write_plain(path, data):
    path.write_bytes(data)


def write_gzip(path, data):
    path.write_bytes(gzip.compress(data))


def write_xz(path, data):
    path.write_bytes(lzma.compress(data))


def write_zip(path, data):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", data)


WRITERS = {".txt": write_plain, ".gz": write_gzip, ".xz": write_xz, ".zip": write_zip}


@pytest.fixture(params=WRITERS)
def packed(request, tmp_path):
    """A file of each kind that holds `TEXT`."""
    path = tmp_path / f"a{request.param}"
    WRITERS[request.param](path, TEXT)
    return path


def read(path, level="byte", **options):
    """Returns the text of a file, or of some."""
    source = TextSource(find_files([str(path)]), level, **options)
    return b"".join(chunk.text for chunk in source.iterate_chunks())


def test_a_file_is_unpacked_by_its_name(packed):
    assert read(packed) == TEXT


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("level", LEVELS)
def test_chunks_give_the_file(packed, level):
    source = TextSource(find_files([str(packed)]), level)
    chunks = list(source.iterate_chunks())
    assert len(chunks) > 5
    assert b"".join(chunk.text for chunk in chunks) == TEXT


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("start", "stop"), [(0, 0), (5, 37), (7, None)])
def test_a_stretch_is_a_part_of_the_file(packed, start, stop):
    (file,) = find_files([str(packed)])
    stretch = TextFile(file.path, file.member, start, stop)
    assert b"".join(stretch.iterate_blocks()) == TEXT[start:stop]


def test_the_size_is_known_where_no_reading_is_needed(packed):
    (file,) = find_files([str(packed)])
    known = None if packed.suffix in (".gz", ".xz") else len(TEXT)
    assert file.size == known
    assert TextFile(file.path, file.member, 5, 37).size == 32
    assert TextSource((file, file), "byte").size == (known and 2 * known)


@pytest.mark.usefixtures("small_chunks")
def test_an_error_within_a_packed_file_is_named(tmp_path):
    write_zip(tmp_path / "a.zip", b"line\n" * 11 + b"ab\xc3")
    with pytest.raises(UserError, match=r"a\.zip/a\.txt`, line 12, byte offset 57: byte 0xc3"):
        read(tmp_path / "a.zip", "char")


@pytest.mark.parametrize("kept", [0, 60])
@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zip"])
def test_a_packed_file_that_is_cut_is_damaged(tmp_path, suffix, kept):
    path = tmp_path / f"a{suffix}"
    WRITERS[suffix](path, random.Random(5).randbytes(997))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match=rf"`{path}` is damaged: "):
        read(path)


@pytest.mark.parametrize("place", [200, -6])
@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zip"])
def test_a_packed_file_with_other_bytes_is_damaged(tmp_path, suffix, place):
    path = tmp_path / f"a{suffix}"
    WRITERS[suffix](path, random.Random(5).randbytes(997))
    data = bytearray(path.read_bytes())
    data[place] ^= 0x55
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"`{path}.*` is damaged: "):
        read(path)


def test_a_zip_with_a_password_cannot_be_unpacked(tmp_path):
    write_zip(tmp_path / "a.zip", TEXT)
    data = bytearray((tmp_path / "a.zip").read_bytes())
    for signature, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(signature) + place] |= 1  # "is encrypted"
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(UserError, match=r"a\.zip/a\.txt` cannot be unpacked: .*password"):
        read(tmp_path / "a.zip")


def test_members_of_a_zip_come_in_the_order_of_their_names(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("b/2", "a", "b/", "b/1", "c"):
            archive.writestr(name, b"" if name.endswith("/") else name.encode() + b" ")
    files = find_files([f"{tmp_path}/a.zip"])
    assert [str(file) for file in files] == [
        f"{tmp_path}/a.zip/{name}" for name in ("a", "b/1", "b/2", "c")
    ]
    assert read(tmp_path / "a.zip") == b"a b/1 b/2 c "


def test_a_word_without_end_is_not_held_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("txl_tf.data.text.text_files._MAX_UNCUT_BYTES", 2**23)
    with gzip.open(tmp_path / "a.gz", "wb", compresslevel=1) as file:
        file.write(b"some words\n" + b"a" * 2**24)
    with pytest.raises(UserError, match=r"`.*a\.gz` contains more than 8,388,608 bytes without a"):
        read(tmp_path / "a.gz", "word")


@pytest.fixture
def tree(tmp_path):
    """Files in folders, which lie in no particular order."""
    for name in ("b.txt", "a.txt", "c.md", "d/f.txt", "d/e/g.txt", "x[1].txt", "x1.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["**/*.txt"], "a.txt b.txt d/e/g.txt d/f.txt x1.txt x[1].txt"),
        (["[bc].*", "a.txt"], "b.txt c.md a.txt"),
        (["b.txt", "?.txt", "b.txt"], "b.txt a.txt"),
        (["x[1].txt"], "x[1].txt"),
        (["x[[]1].txt"], "x[1].txt"),
    ],
)
def test_patterns_name_files_in_order_each_once(tree, patterns, names):
    files = find_files([f"{tree}/{pattern}" for pattern in patterns])
    assert " ".join(str(file.path.relative_to(tree)) for file in files) == names


def test_repeated_files_are_reported(tree, capsys):
    find_files([f"{tree}/b.txt", f"{tree}/d/../?.txt", f"{tree}/c.md"])
    assert capsys.readouterr().out == f"Given more than once, but read once: {tree}/b.txt.\n"
    find_files([f"{tree}/?.txt"])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("pattern", ["d", "?"])
def test_a_folder_is_no_file(tree, pattern):
    with pytest.raises(UserError, match=r"' is a folder; '.*/\*' matches the files in it\.$"):
        find_files([f"{tree}/{pattern}"])


def test_a_pipe_or_an_empty_zip_is_no_file(tree):
    os.mkfifo(tree / "pipe")
    zipfile.ZipFile(tree / "a.zip", "w").close()
    for name, fault in (("pipe", "is not a regular file"), ("a.zip", "contains no file")):
        with pytest.raises(UserError, match=rf"{name}. {fault}\.$"):
            find_files([f"{tree}/{name}"])


def test_a_bracket_in_a_pattern_that_matches_nothing_is_explained(tree):
    with pytest.raises(UserError, match=r"\[ begins a set of characters; write \[\[\] for \[\.$"):
        find_files([f"{tree}/my [d]/*.txt"])
