"""The data sets as the 2019 release made them, from the files that it read."""

import json
import shutil

import numpy as np
import pytest
from places import GOLDEN

from txl_tf.data import open_records, read_ids
from txl_tf.programs import prepare

DATA = GOLDEN / "data"
SPLITS = ("train", "valid", "test")
CASES = {  # name: data set, its raw files, flags
    "text8": ("text8", "text8", ["--valid_size=6000", "--test_size=6000"]),
    "text8 in splits": ("text8", "text8/splits", []),
    "enwik8": (
        "enwik8",
        "enwik8",
        ["--valid_size=5000", "--test_size=5000", "--drop_newlines"],
    ),
    "enwik8 in splits": ("enwik8", "enwik8/splits", ["--drop_newlines"]),
    "wt103": ("wt103", "wt103", []),
    "ptb": ("ptb", "ptb", []),
    "lm1b": ("lm1b", "lm1b", []),
}


def make(dataset, raw_dir, data_dir, *arguments):
    """Makes a data set in this process, which spares the import of tensorflow."""
    flags = [f"--dataset={dataset}", f"--raw_dir={raw_dir}", f"--data_dir={data_dir}"]
    assert prepare.main(["make_tfrecords.py", *flags, *map(str, arguments)]) == 0
    return data_dir


@pytest.fixture(scope="module", params=CASES)
def made(request, tmp_path_factory):
    """Returns the folder of a golden data set, and the records that were made from it."""
    dataset, raw_dir, flags = CASES[request.param]
    data_dir = tmp_path_factory.mktemp("records")
    return DATA / dataset, make(dataset, DATA / raw_dir, data_dir, *flags)


def test_the_vocabulary_is_that_of_the_2019_release(made):
    golden, data_dir = made
    assert (data_dir / "vocab.txt").read_text() == (golden / "vocab.txt").read_text()


def test_the_ids_are_those_of_the_2019_release(made):
    golden, data_dir = made
    expected = np.load(golden / "ids.npz")
    for split in expected:
        np.testing.assert_array_equal(read_ids(data_dir, split), expected[split])


@pytest.mark.parametrize("raw_dir", ["enwik8", "enwik8/splits"])
def test_enwik8_keeps_every_byte_by_default(raw_dir, tmp_path):
    sizes = ["--valid_size=5000", "--test_size=5000"] if raw_dir == "enwik8" else []
    make("enwik8", DATA / raw_dir, tmp_path, *sizes)
    records = open_records(tmp_path)
    texts = [records.vocabulary.decode_bytes(read_ids(tmp_path, split)) for split in SPLITS]
    assert b"".join(texts) == (DATA / "enwik8" / "enwik8").read_bytes()


def test_the_splits_of_the_release_are_taken_where_no_sizes_are_given(tmp_path):
    raw = tmp_path / "raw"
    shutil.copytree(DATA / "text8" / "splits", raw)
    shutil.copy(DATA / "text8" / "text8", raw)
    make("text8", raw, tmp_path / "records")
    assert len(read_ids(tmp_path / "records", "test")) == 5999


def test_lm1b_holds_every_sentence_once_for_each_shuffle(tmp_path):
    make("lm1b", DATA / "lm1b", tmp_path, "--num_shuffles=3")
    records = open_records(tmp_path)
    split = records.split("train")
    ids, starts = split.read(0, len(split)), split.document_starts
    sentences = [records.vocabulary.decode(part) for part in np.split(ids, starts[1:])]
    folder = next((DATA / "lm1b").glob("*/training*"))
    lines = [line for path in folder.iterdir() for line in path.read_text().splitlines(True)]
    assert sorted(sentences) == sorted(lines * 3)
    third = len(lines) // 3
    assert sentences[:third] != sentences[third : 2 * third]


def test_the_seed_alone_decides_the_order_of_lm1b(tmp_path):
    for folder, flags in (
        ("a", ["--num_workers=2"]),
        ("b", ["--num_workers=3", "--seed=0"]),
        ("c", ["--seed=5"]),
    ):
        make("lm1b", DATA / "lm1b", tmp_path / folder, "--num_shuffles=2", *flags)
    first, same, other = (read_ids(tmp_path / folder, "train") for folder in "abc")
    np.testing.assert_array_equal(first, same)
    assert sorted(first) == sorted(other)
    assert (first != other).any()


def test_wikitext_counts_the_documents_by_their_titles(tmp_path):
    make("wt103", DATA / "wt103", tmp_path)
    records = open_records(tmp_path)
    split = records.split("valid")
    for start in split.document_starts[1:]:
        line = records.vocabulary.decode(split.read(start, start + 12)).split("\n")[0]
        assert line.startswith("= ")
        assert line.endswith(" =")
    text = (DATA / "wt103" / "valid.txt").read_text()
    titles = [line for line in text.split("\n") if line.startswith(" = ") and " = = " not in line]
    assert len(split.document_starts) == len(titles)


def test_wt2_counts_all_splits_and_wt103_the_training_text_only(tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    for split, text in (("train", " a b b\n"), ("valid", " a a a\n"), ("test", " b <unk>\n")):
        (raw / f"wiki.{split}.tokens").write_text(text)
    make("wt2", raw, tmp_path / "wt2")
    assert open_records(tmp_path / "wt2").vocabulary.symbols == ("<eos>", "a", "b", "<unk>")
    (raw / "wiki.train.tokens").write_text(" a b b <unk>\n")
    make("wt103", raw, tmp_path / "wt103")
    assert open_records(tmp_path / "wt103").vocabulary.symbols == ("<eos>", "b", "a", "<unk>")


def test_pydoc_can_encode_every_byte(monkeypatch, tmp_path):
    splits = {"train": [b"banana"], "valid": [b"x", b"yz"], "test": [b"y"]}
    monkeypatch.setattr("txl_tf.preparation.standard_library.read_standard_library", lambda: splits)
    assert prepare.main(["x", "--dataset=pydoc", f"--data_dir={tmp_path}"]) == 0
    records = open_records(tmp_path)
    assert read_ids(tmp_path, "train").tolist() == list(b"banana")
    assert len(records.vocabulary) == 256
    assert records.split("valid").document_starts.tolist() == [0, 1]


def test_pydoc_may_have_the_vocabulary_of_a_run(monkeypatch, tmp_path):
    splits = {"train": [b"banana"], "valid": [b"x"], "test": [b"y"]}
    monkeypatch.setattr("txl_tf.preparation.standard_library.read_standard_library", lambda: splits)
    symbols = [str(byte) for byte in range(255, -1, -1)]
    (tmp_path / "v.json").write_text(json.dumps({"level": "byte", "symbols": symbols}))
    flags = [f"--data_dir={tmp_path}/records", f"--vocab_file={tmp_path}/v.json"]
    assert prepare.main(["x", "--dataset=pydoc", *flags]) == 0
    assert read_ids(tmp_path / "records", "train").tolist() == [255 - byte for byte in b"banana"]
    assert prepare.main(["x", "--dataset=pydoc", flags[0]]) == 1  # without that vocabulary
