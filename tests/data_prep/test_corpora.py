import zipfile
from pathlib import Path

import corpora
import numpy as np
import pytest

GOLDEN = Path(__file__).parents[1] / "golden" / "data"
SPLITS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def text8():
    return corpora.prepare_text8(GOLDEN / "text8", valid_size=6000, test_size=6000)


@pytest.fixture(scope="module")
def enwik8():
    return corpora.prepare_enwik8(
        GOLDEN / "enwik8", valid_size=5000, test_size=5000, drop_newlines=True
    )


@pytest.mark.parametrize("name", ["text8", "enwik8"])
def test_the_vocabulary_is_that_of_the_2019_release(name, request):
    symbols = request.getfixturevalue(name).vocabulary.symbols
    assert "".join(f"{symbol}\n" for symbol in symbols) == (GOLDEN / name / "vocab.txt").read_text()


@pytest.mark.parametrize("name", ["text8", "enwik8"])
@pytest.mark.parametrize("split", SPLITS)
def test_the_ids_are_those_of_the_2019_release(name, split, request):
    prepared = request.getfixturevalue(name)
    ids = prepared.vocabulary.encode(prepared.splits[split])
    np.testing.assert_array_equal(ids, np.load(GOLDEN / name / "ids.npz")[split])


def test_enwik8_keeps_every_byte_by_default():
    prepared = corpora.prepare_enwik8(GOLDEN / "enwik8", valid_size=5003, test_size=4001)
    raw = (GOLDEN / "enwik8" / "enwik8").read_bytes()
    assert b"".join(prepared.splits[split] for split in SPLITS) == raw
    assert len(prepared.splits["valid"]) == 5003
    assert len(prepared.splits["test"]) == 4001
    assert "10" in prepared.vocabulary.symbols


def test_text8_writes_the_space_as_an_underscore(text8):
    assert "_" in text8.vocabulary.symbols
    assert text8.vocabulary.decode(text8.vocabulary.encode("a e")) == "a e"


def test_pydoc_can_encode_every_byte(monkeypatch):
    splits = {"train": b"banana", "valid": b"x", "test": b"y"}
    monkeypatch.setattr(corpora, "read_standard_library", lambda: splits)
    vocabulary = corpora.prepare_pydoc().vocabulary
    assert len(vocabulary) == 256
    assert vocabulary.symbols[:3] == tuple(str(ord(letter)) for letter in "anb")


@pytest.mark.parametrize("name", ["text8", "enwik8"])
def test_an_archive_is_as_good_as_the_file(tmp_path, name):
    with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
        archive.write(GOLDEN / name / name, name)
    corpus = corpora.CORPORA[name]
    assert corpora.read_raw(corpus, tmp_path) == corpora.read_raw(corpus, GOLDEN / name)


def test_a_missing_raw_file_is_told_where_to_get_it_and_where_to_put_it(tmp_path):
    with pytest.raises(
        corpora.CorpusError,
        match=r"text8` is missing.*Get http://mattmahoney.net/dc/text8.zip and put it into `",
    ):
        corpora.prepare_text8(tmp_path, valid_size=5, test_size=5)


def test_a_damaged_archive_is_named(tmp_path):
    (tmp_path / "enwik8.zip").write_bytes(b"PK, but no archive")
    with pytest.raises(corpora.CorpusError, match=r"enwik8.zip` is damaged: .* again"):
        corpora.prepare_enwik8(tmp_path, valid_size=5, test_size=5)


def test_an_archive_of_something_else_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "text8.zip", "w") as archive:
        archive.writestr("readme", "hello")
    with pytest.raises(corpora.CorpusError, match=r"text8.zip` is damaged: .*no item named"):
        corpora.prepare_text8(tmp_path, valid_size=5, test_size=5)


def test_text8_must_be_ascii(tmp_path):
    (tmp_path / "text8").write_text("naïve" * 5, encoding="utf-8")
    with pytest.raises(corpora.CorpusError, match="text8` is not text8: 'ascii' codec"):
        corpora.prepare_text8(tmp_path, valid_size=5, test_size=5)


def test_text8_must_not_hold_the_symbol_of_the_space(tmp_path):
    (tmp_path / "text8").write_text("a b_c d e f")
    with pytest.raises(corpora.CorpusError, match="is not text8: it holds '_'"):
        corpora.prepare_text8(tmp_path, valid_size=3, test_size=2)


def test_something_must_be_left_for_training():
    with pytest.raises(
        corpora.CorpusError, match=r"must be below .* valid_size=7, test_size=4, size=11"
    ):
        corpora.cut_sizes(11, 7, 4)


def test_a_raw_file_of_another_size_is_noted(text8):
    assert text8.note == (
        "The raw file of text8 has 52,000 bytes; the published one has 100,000,000."
    )


def test_a_raw_file_of_the_published_size_is_not_noted():
    assert corpora.note_size(corpora.CORPORA["enwik8"], 100_000_000) is None
