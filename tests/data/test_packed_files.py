import bz2
import gzip
import io
import lzma
import os
import random
import tarfile
import zipfile

import pytest

from txl_tf.data.text.packed_files import Pipe
from txl_tf.data.text.text_files import StandardInput, TextFile, TextSource, find_files
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


def write_lzma(path, data):
    path.write_bytes(lzma.compress(data, lzma.FORMAT_ALONE))


def write_bzip2(path, data):
    path.write_bytes(bz2.compress(data))


def write_zip(path, data):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", data)


STREAMS = {".gz": write_gzip, ".xz": write_xz, ".lzma": write_lzma, ".bz2": write_bzip2}
WRITERS = {".txt": write_plain, ".zip": write_zip} | STREAMS


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


def test_a_file_is_unpacked(packed):
    assert read(packed) == TEXT


@pytest.mark.parametrize("name", ["a.txt", "a", "a.gz"])
@pytest.mark.parametrize("kind", STREAMS)
def test_a_file_is_unpacked_whatever_its_name(tmp_path, kind, name):
    STREAMS[kind](tmp_path / name, TEXT)
    assert read(tmp_path / name) == TEXT


def pack_tar(*, version=tarfile.PAX_FORMAT):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=version) as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return packed.getvalue()


ARCHIVES = {
    "tar": pack_tar(),
    "tar in gzip": gzip.compress(pack_tar()),
    "tar in bzip2": bz2.compress(pack_tar(version=tarfile.USTAR_FORMAT)),
    "gzip in xz": lzma.compress(gzip.compress(TEXT)),
    "zip": b"PK\3\4" + bytes(97),
    "empty zip": b"PK\5\6" + bytes(18),
    "zstd": b"\x28\xb5\x2f\xfd" + bytes(97),
    "lz4": b"\x04\x22\x4d\x18" + bytes(97),
    "7z": b"7z\xbc\xaf\x27\x1c" + bytes(97),
    "rar": b"Rar!\x1a\7\0" + bytes(97),
    "compress": b"\x1f\x9d\x90" + bytes(97),
}


@pytest.mark.parametrize("name", ["a.txt", "a.gz"])
@pytest.mark.parametrize("kind", ARCHIVES)
def test_archives_and_other_packed_files_are_refused_when_they_are_listed(tmp_path, kind, name):
    (tmp_path / name).write_bytes(ARCHIVES[kind])
    with pytest.raises(UserError, match=rf"`{tmp_path}/{name}` holds a .* file, not a text"):
        find_files([f"{tmp_path}/{name}"])


def test_a_packed_member_of_a_zip_is_refused(tmp_path):
    write_zip(tmp_path / "a.zip", gzip.compress(TEXT))
    with pytest.raises(UserError, match=r"a\.zip/a\.txt` holds a gz file, not a text: unpack it"):
        read(tmp_path / "a.zip")


@pytest.mark.parametrize("text", [b"", b"BZh9 is no text\n", b"PK\n", b"7z", b"]\0\0", b"\x1f\x8b"])
def test_a_short_text_is_not_taken_for_a_packed_file(tmp_path, text):
    (tmp_path / "a.txt").write_bytes(text)
    assert read(tmp_path / "a.txt") == text


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("level", LEVELS)
def test_bytes_behind_the_last_member_of_a_gzip_are_ignored_with_a_warning(tmp_path, level, capsys):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(TEXT) + gzip.compress(b"more\n") + bytes(5) + b"junk\x1f\x8b")
    assert read(path, level) == TEXT + b"more\n"
    assert capsys.readouterr().err == f"warning: `{path}`: what follows its gzip data is ignored\n"


@pytest.fixture
def pipe(monkeypatch):
    """A pipe whose end is the standard input."""
    source, sink = os.pipe()
    monkeypatch.setattr(StandardInput, "_open_stored", lambda self: Pipe(io.FileIO(source)))
    with open(sink, "wb", buffering=0) as writer:
        yield writer


@pytest.mark.parametrize("kind", STREAMS)
def test_a_packed_standard_input_is_unpacked(pipe, tmp_path, kind):
    STREAMS[kind](tmp_path / "a", TEXT)
    pipe.write((tmp_path / "a").read_bytes())
    pipe.close()
    assert b"".join(StandardInput().iterate_blocks()) == TEXT


def test_an_archive_in_the_standard_input_is_refused(pipe):
    pipe.write(ARCHIVES["zip"])
    with pytest.raises(UserError, match=r"`standard input` holds a zip file, not a text"):
        next(StandardInput().iterate_blocks())


def test_the_standard_input_is_read_while_it_is_written(pipe):
    pipe.write(b"one\n")
    blocks = StandardInput().iterate_blocks()
    assert next(blocks) == b"one\n"
    pipe.write(b"two\n")
    assert next(blocks) == b"two\n"


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
    known = None if packed.suffix in STREAMS else len(TEXT)
    assert file.size == known
    assert TextFile(file.path, file.member, 5, 37).size == 32
    assert TextSource((file, file), "byte").size == (known and 2 * known)


@pytest.mark.usefixtures("small_chunks")
def test_an_error_within_a_packed_file_is_named(tmp_path):
    write_zip(tmp_path / "a.zip", b"line\n" * 11 + b"ab\xc3")
    with pytest.raises(UserError, match=r"a\.zip/a\.txt`, line 12, byte offset 57: byte 0xc3"):
        read(tmp_path / "a.zip", "char")


@pytest.mark.parametrize("kept", [0, 60])
@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2", ".zip"])
def test_a_packed_file_that_is_cut_is_damaged(tmp_path, suffix, kept):
    path = tmp_path / f"a{suffix}"
    WRITERS[suffix](path, random.Random(5).randbytes(997))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match=rf"`{path}` is damaged: "):
        read(path)


@pytest.mark.parametrize("place", [1, 200, -6])
@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2", ".zip"])
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
    line = f"given more than once, but read once: {tree}/b.txt; a copy is read again"
    assert capsys.readouterr().err == f"warning: {line}\n"
    find_files([f"{tree}/?.txt"])
    assert capsys.readouterr().err == ""


def test_a_comma_in_the_name_of_a_file_is_explained(tree):
    (tree / "a,b.txt").write_text("a")
    with pytest.raises(UserError, match=r"no file matches '.*/a'\. Commas separate .*; write \? "):
        find_files([f"{tree}/a", "b.txt"])
    assert str(find_files([f"{tree}/a?b.txt"])[0]) == f"{tree}/a,b.txt"


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
