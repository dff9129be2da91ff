"""Where the files of a data set are, and how one file is cut into splits."""

import gzip
import zipfile
from dataclasses import replace

import pytest

from txl_tf.data.text.text_files import TextFile
from txl_tf.errors import UserError
from txl_tf.preparation.corpora import CORPORA, parse_enwik8, parse_text8
from txl_tf.preparation.corpus import SPLITS, find_raw, hold_out

TEXT8, ENWIK8, WT2 = (CORPORA[name] for name in ("text8", "enwik8", "wt2"))


def read(source):
    return b"".join(chunk.text for chunk in source.iterate_chunks())


def read_splits(corpus, folder, **changes):
    """Returns the text of each split that a data set finds in a folder; empty if it finds none."""
    texts = replace(corpus, **changes).locate(folder)
    return {split: read(source) for split, source in texts.sources.items()} if texts else {}


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_the_test_split_is_last_and_the_valid_split_before_it(tmp_path):
    write(tmp_path / "enwik8", bytes(range(100)))
    assert read_splits(ENWIK8, tmp_path, held_out=(7, 5)) == {
        "train": bytes(range(88)),
        "valid": bytes(range(88, 95)),
        "test": bytes(range(95, 100)),
    }


def test_the_sizes_of_the_user_replace_those_of_the_set(tmp_path):
    write(tmp_path / "enwik8", bytes(range(100)))
    texts = read_splits(ENWIK8, tmp_path, held_out=(7, 5), sizes=(None, 3))
    assert [len(text) for text in texts.values()] == [90, 7, 3]


@pytest.mark.parametrize("n_spaces", [1, 700])
def test_the_splits_of_text8_are_stripped(tmp_path, n_spaces):
    space = b" " * n_spaces
    text = space + b"ab" + space + b"c" * 7 + b"d" * (11 - n_spaces % 11) + space
    write(tmp_path / "text8", text)
    held_out = (7, len(text) - 2 * n_spaces - 2 - 7)
    texts = read_splits(TEXT8, tmp_path, held_out=held_out)
    assert (texts["train"], texts["valid"]) == (b"ab", b"c" * 7)


@pytest.mark.parametrize("sizes", [(90, 10), (99, 2)])
def test_something_must_be_left_for_training(tmp_path, sizes):
    write(tmp_path / "enwik8", bytes(100))
    with pytest.raises(UserError, match=r"must be below the size of the raw file.*100 bytes"):
        read_splits(ENWIK8, tmp_path, sizes=sizes)


def test_an_archive_is_as_good_as_the_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "enwik8.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("other", b"no")
        archive.writestr("enwik8", bytes(range(100)))
    assert read_splits(ENWIK8, tmp_path, held_out=(7, 5))["valid"] == bytes(range(88, 95))


@pytest.mark.parametrize("pattern", ["{}.txt", "wikitext-2/wiki.{}.tokens"])
def test_files_are_found_in_each_layout(tmp_path, pattern):
    for split in SPLITS:
        write(tmp_path / pattern.format(split), split.encode())
    expected = {split: f"{split}\n".encode() for split in SPLITS}
    assert read_splits(WT2, tmp_path) == expected


def test_a_layout_that_is_not_whole_is_not_taken(tmp_path):
    for split in ("train", "valid"):
        write(tmp_path / f"{split}.txt", b"a")
    assert WT2.locate(tmp_path) is None


def test_the_training_files_of_lm1b_come_in_the_order_of_their_names(tmp_path):
    for index in (11, 2, 7):
        write(tmp_path / f"news.en-{index:05d}-of-00100", b"a")
    assert [file.path.name[8:13] for file in find_raw(tmp_path, "news.en-*")] == [
        "00002",
        "00007",
        "00011",
    ]


def test_text8_must_be_one_character_at_a_time():
    with pytest.raises(UserError, match=r"whose characters are separated: b'ab'"):
        parse_text8(b"a ab")


@pytest.mark.parametrize(
    ("text", "symbol"), [(b"a_b", "_"), (b"aBc", "B"), (b"a\nb", r"\\n"), ("aéb".encode(), "é")]
)
def test_text8_has_27_symbols(tmp_path, text, symbol):
    write(tmp_path / "text8", text)
    with pytest.raises(UserError, match=rf"text8 has 27 symbols, .* such as '{symbol}'; --dataset"):
        read_splits(TEXT8, tmp_path, held_out=(0, 0))


def test_a_raw_file_that_is_cut_must_be_unpacked(tmp_path):
    write(tmp_path / "text8", gzip.compress(b"a b"))
    with pytest.raises(UserError, match=r"text8` must be unpacked first: it is cut into splits"):
        TEXT8.locate(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"\n 65 \n \n 66", b"\nA\n\nB"),
        (b"65 \n", b"A\n"),
        (b"255 0", b"\xff\0"),
    ],
)
def test_a_line_break_among_numbers_is_byte_10(text, expected):
    assert parse_enwik8(text) == expected


@pytest.mark.parametrize("text", [b"256", b"065"])
def test_enwik8_must_be_numbers_of_bytes(text):
    with pytest.raises(UserError, match=r"not enwik8 in the format of the 2019 release.*b'"):
        parse_enwik8(text)


def test_enwik8_in_numbers_may_be_cut_anywhere(tmp_path, monkeypatch):
    numbers = " ".join("\n" if byte == 10 else str(byte) for byte in bytes(range(256)) * 3)
    for split in SPLITS:
        write(tmp_path / f"{split}.txt", numbers.encode())
    blocks = TextFile.iterate_blocks
    monkeypatch.setattr(TextFile, "iterate_blocks", lambda self: blocks(self, 5))
    assert read_splits(ENWIK8, tmp_path)["train"] == bytes(range(256)) * 3


def cut(texts, fraction, level, folder):
    """Returns the texts of the splits train and valid of some files."""
    files = tuple(TextFile(write(folder / str(n), text)) for n, text in enumerate(texts))
    held_out = hold_out(files, fraction, level)
    return [b"".join(b"".join(f.iterate_blocks()) for f in held_out[s]) for s in ("train", "valid")]


@pytest.mark.parametrize("level", ["byte", "word"])
@pytest.mark.parametrize("fraction", [0.04, 0.3, 0.61])
def test_valid_is_a_fraction_of_the_end_cut_at_a_line(tmp_path, fraction, level):
    texts = [b"".join(b"%d\n" % n for n in part) for part in (range(97), range(97, 211), [5])]
    train, valid = cut(texts, fraction, level, tmp_path)
    whole = b"".join(texts)
    assert train + valid == whole
    assert train.endswith(b"\n")
    assert abs(len(valid) - fraction * len(whole)) <= len(b"210\n")


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("level", ["byte", "char"])
def test_one_line_is_cut_before_a_character(tmp_path, level, end):
    text = "文字🜁" * 13 + end
    train, valid = cut([text.encode()], 0.3, level, tmp_path)
    assert train.decode() + valid.decode() == text
    assert abs(len(valid) - 0.3 * len(text.encode())) < 4


def test_a_line_that_ends_far_away_is_cut_before_a_character(tmp_path, monkeypatch):
    monkeypatch.setattr("txl_tf.preparation.corpus._CUT_BYTES", 5)
    assert cut([b"a" * 13 + b"\n" + b"b"], 0.5, "char", tmp_path) == [b"a" * 8, b"a" * 5 + b"\nb"]


def test_a_file_may_be_the_end_of_the_training_text(tmp_path):
    assert cut([b"one line", b"ab"], 0.5, "byte", tmp_path) == [b"one l", b"ineab"]
    assert cut([b"one line\n", b"ab"], 0.5, "byte", tmp_path) == [b"one line\n", b"ab"]


def test_files_that_cannot_be_divided_are_refused(tmp_path):
    line = TextFile(write(tmp_path / "a", b"one line"))
    with pytest.raises(UserError, match=r"must leave text to both splits; words and subwords are"):
        hold_out((line,), 0.5, "word")
    with pytest.raises(UserError, match=r"must leave text to both splits"):
        hold_out((line,), 0.01, "char")
    packed = TextFile(write(tmp_path / "b.gz", b"packed"))
    with pytest.raises(UserError, match=r"needs unpacked files\. Received: .*b\.gz"):
        hold_out((line, packed), 0.5, "char")
