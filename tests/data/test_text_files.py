import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_tf.data.text.text_files import (
    TextFile,
    TextSource,
    cut_blocks,
    find_cut,
    find_files,
)
from txl_tf.errors import UserError

FUZZ = settings(max_examples=101, deadline=None, derandomize=True)
LEVELS = ["byte", "char", "word", "subword"]


@pytest.fixture
def small_chunks(monkeypatch):
    """Lets files be read in blocks of 13 bytes."""
    monkeypatch.setattr(TextFile.iterate_blocks, "__defaults__", (13,))


def read(path, level="byte", **options):
    """Returns the text of a file, or of some."""
    source = TextSource(find_files([str(path)]), level, **options)
    return b"".join(chunk.text for chunk in source.iterate_chunks())


@pytest.mark.parametrize("level", ["byte", "word"])
def test_chunks_tell_where_files_and_lines_begin(tmp_path, small_chunks, level):
    (tmp_path / "a").write_bytes(b"one two\nthree\nfour five six seven\n")
    (tmp_path / "b").write_bytes(b"eight")
    chunks = list(TextSource(find_files([f"{tmp_path}/*"]), level).iterate_chunks())
    before = b"\n"
    for chunk in chunks:
        assert chunk.begins_file == chunk.text.startswith((b"one", b"eight"))
        assert chunk.begins_line == (chunk.begins_file or before.endswith(b"\n"))
        before = chunk.text


@pytest.mark.parametrize(("level", "expected"), [("word", b"a\nb\n"), ("char", b"ab\n")])
def test_a_missing_line_break_is_added_at_level_word_alone(tmp_path, level, expected):
    (tmp_path / "1").write_bytes(b"a")
    (tmp_path / "2").write_bytes(b"")
    (tmp_path / "3").write_bytes(b"b\n")
    assert read(tmp_path / "*", level) == expected


@pytest.mark.usefixtures("small_chunks")
def test_long_lines_are_cut_before_a_space(tmp_path):
    (tmp_path / "a").write_bytes(b"one two three four five six seven eight\nnine ten")
    source = TextSource(find_files([f"{tmp_path}/a"]), "word")
    texts = [chunk.text for chunk in source.iterate_chunks()]
    assert texts[:4] == [b"one two", b" three four five", b" six seven", b" eight\n"]


@pytest.mark.parametrize(
    ("text", "level", "place"),
    [
        (b"a b\nc d", "byte", 4),
        (b"a b\nc d", "word", 4),
        (b"a b c", "byte", 5),
        (b"a b c", "subword", 3),
        (b" abc", "word", 0),
        (b"abc", "word", 0),
        ("abé".encode()[:-1], "char", 2),
        ("a文".encode()[:-1], "char", 1),
        ("a🜁".encode()[:-3], "char", 1),
        ("a🜁".encode(), "char", 1),
        (b"", "char", 0),
    ],
)
def test_a_text_is_cut_behind_a_line_or_where_its_level_allows(text, level, place):
    assert find_cut(text, level) == place


def cut(text, sizes, level):
    """Cuts a text into blocks of some sizes over and over, and these where they may be."""

    def iterate_blocks():
        place = index = 0
        while place < len(text):
            yield text[place : place + sizes[index % len(sizes)]]
            place, index = place + sizes[index % len(sizes)], index + 1

    return list(cut_blocks(iterate_blocks(), level))


SIZES = st.lists(st.integers(1, 11), min_size=1, max_size=5)
ANY_TEXT = st.text(alphabet=st.sampled_from("a é文🜁\n"), max_size=41).map(str.encode)


@FUZZ
@given(text=st.binary(max_size=41), sizes=SIZES, level=st.sampled_from(LEVELS))
def test_pieces_of_any_bytes_give_the_whole(text, sizes, level):
    assert b"".join(cut(text, sizes, level)) == text


@FUZZ
@given(text=ANY_TEXT, sizes=SIZES, level=st.sampled_from(["word", "subword"]))
def test_no_word_is_cut(text, sizes, level):
    pieces = cut(text, sizes, level)
    assert [word for piece in pieces for word in piece.split()] == text.split()


BROKEN = b"one\ntwo and three\n" + "fünf \xff sechs\n".encode("latin-1")


@pytest.mark.parametrize("blocks", [13, 2**22])
@pytest.mark.parametrize("level", ["char", "word"])
def test_bytes_that_are_not_utf8_are_named_with_line_and_offset(
    tmp_path, monkeypatch, level, blocks
):
    monkeypatch.setattr(TextFile.iterate_blocks, "__defaults__", (blocks,))
    (tmp_path / "a").write_bytes(BROKEN)
    with pytest.raises(
        UserError,
        match=rf"`{tmp_path}/a`, line 3, byte offset 19: byte 0xfc, which is not UTF-8 .*=replace",
    ):
        read(tmp_path / "a", level)


@pytest.mark.usefixtures("small_chunks")
def test_an_error_within_a_stretch_has_its_place_in_the_file(tmp_path):
    (tmp_path / "a").write_bytes(b"skipped\n" + b"line\n" * 211 + b"ab\xffc\n")
    source = TextSource((TextFile(tmp_path / "a", start=8),), "char")
    with pytest.raises(UserError, match=r"line 213, byte offset 1065: byte 0xff, which is not"):
        list(source.iterate_chunks())


@pytest.mark.usefixtures("small_chunks")
def test_bytes_that_are_not_utf8_can_be_replaced_or_kept(tmp_path):
    (tmp_path / "a").write_bytes(BROKEN)
    assert read(tmp_path / "a", "byte") == BROKEN
    found = read(tmp_path / "a", "char", encoding_errors="replace")
    assert found == "one\ntwo and three\nf\ufffdnf \ufffd sechs\n".encode()


@pytest.mark.usefixtures("small_chunks")
def test_a_nul_is_no_part_of_a_word(tmp_path):
    (tmp_path / "a").write_bytes(b"one\ntwo and three\nfi\0ve\n")
    with pytest.raises(UserError, match=r"line 3, byte offset 20: a NUL byte, .* is it a text\?"):
        read(tmp_path / "a", "word", encoding_errors="replace")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (
            "schön\n".encode("latin-1"),
            "if it is in LATIN1, iconv -f LATIN1 -t UTF-8 converts it; -",
        ),
        ("\ufeffa\n".encode("utf-16-le"), "if it is in UTF-16, iconv -f UTF-16 -t UTF-8 converts"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\n", r"is it a text\? --"),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", r"is it a text\? --"),
    ],
)
def test_errors_about_encodings_suggest_a_remedy(tmp_path, text, advice):
    (tmp_path / "a").write_bytes(text)
    with pytest.raises(UserError, match=rf"is not UTF-8 \(.*\); {advice}.*=replace continues"):
        read(tmp_path / "a", "char")


def test_binary_data_are_read_as_bytes_with_a_warning(tmp_path, capsys):
    (tmp_path / "a").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "b").write_bytes(b"%PDF-1.7\n")
    (tmp_path / "c").write_bytes(b"a text\n")
    assert read(tmp_path / "*") == b"\x7fELF\0\0%PDF-1.7\na text\n"
    assert capsys.readouterr().err == (
        f"warning: read as it is, but it does not look like text: {tmp_path}/a, {tmp_path}/b\n"
    )


MARK = "\ufeff".encode()


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("level", ["char", "word", "subword"])
def test_a_byte_order_mark_is_left_out_where_a_file_begins(tmp_path, level, capsys):
    (tmp_path / "a").write_bytes(MARK + b"the first file\n" + MARK + b"the\n")
    (tmp_path / "b").write_bytes(MARK)
    (tmp_path / "c").write_bytes(MARK + b"c\n")
    source = TextSource(find_files([f"{tmp_path}/*"]), level)
    chunks = list(source.iterate_chunks())
    assert b"".join(c.text for c in chunks) == b"the first file\n" + MARK + b"the\nc\n"
    assert [c.text[:3] for c in chunks if c.begins_file] == [b"the", b"c\n"]
    files = {name: (tmp_path / name).read_bytes() for name in "ac"}
    assert all(any(f[c.offset :].startswith(c.text) for f in files.values()) for c in chunks)
    assert capsys.readouterr().err == ""


def test_a_stretch_within_a_file_has_no_byte_order_mark(tmp_path):
    (tmp_path / "a").write_bytes(b"a\n" + MARK + b"b\n")
    source = TextSource((TextFile(tmp_path / "a", start=2),), "char")
    assert b"".join(chunk.text for chunk in source.iterate_chunks()) == MARK + b"b\n"


def test_level_byte_keeps_a_byte_order_mark_and_says_so(tmp_path, capsys):
    (tmp_path / "a").write_bytes(MARK + b"a")
    assert read(tmp_path / "a") == read(tmp_path / "a") == MARK + b"a"
    assert capsys.readouterr().err == (
        f"warning: level byte keeps the byte order mark that begins {tmp_path}/a\n"
    )


def test_a_fault_behind_a_byte_order_mark_has_its_place_in_the_file(tmp_path):
    (tmp_path / "a").write_bytes(MARK + b"a\nb\xff")
    with pytest.raises(UserError, match=r"line 2, byte offset 6: byte 0xff"):
        read(tmp_path / "a", "char")


@pytest.mark.usefixtures("small_chunks")
def test_a_parser_gets_pieces_that_end_at_a_space(tmp_path):
    (tmp_path / "a").write_bytes(b"101 102 103 104 105 106 107 108\n109")
    pieces = []

    def parse(text):
        pieces.append(text)
        return bytes(map(int, text.split()))

    assert read(tmp_path / "a", "byte", parse=(parse,)) == b"efghijklm"
    assert pieces == [b"101 102 103", b" 104 105 106", b" 107 108\n", b"109"]


def test_the_fault_of_a_parsed_text_names_the_file_without_a_place(tmp_path):
    (tmp_path / "a").write_bytes(b"a b _ c \xff d")
    with pytest.raises(UserError, match=r"a`: byte 0xff, which is not UTF-8"):
        read(tmp_path / "a", "char", parse=(lambda text: text.replace(b" ", b""),))

    def fail(text):
        raise UserError("this is no number")

    with pytest.raises(UserError, match=r"a`: this is no number"):
        read(tmp_path / "a", "byte", parse=(fail,))
