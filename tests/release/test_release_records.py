"""Records of the 2019 release against an independent reading of them, and against its own ids."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from release_data import DATA, B, T, copy_form, read_all
from tables import slow_after

from txl_tf.data import (
    RecordError,
)
from txl_tf.release import load_vocabulary
from txl_tf.release.records import holds_release_records, open_release_records

GPU_CASES = slow_after(
    1, [("wt103", "train"), ("ptb", "valid"), ("text8", "valid"), ("enwik8", "valid")]
)
TPU_CASES = slow_after(1, [("ptb", "train"), ("text8", "valid")])


def parse_lanes(path):
    """Returns the lanes of a file, (B, n), as tf.data reads it: batches side by side."""
    spec = {name: tf.io.VarLenFeature(tf.int64) for name in ("inputs", "labels")}
    examples = [
        {name: tf.sparse.to_dense(value).numpy() for name, value in example.items()}
        for example in (
            tf.io.parse_single_example(record, spec)
            for record in tf.data.TFRecordDataset(str(path))
        )
    ]
    batches = [
        np.stack([example["inputs"] for example in examples[start : start + B]])
        for start in range(0, len(examples), B)
    ]
    last = np.stack([example["labels"] for example in examples[-B:]])[:, -1:]
    return np.concatenate([*batches, last], axis=1)


@pytest.fixture
def folder(tmp_path):
    """The text8 records in the GPUs' form, to be changed."""
    return copy_form("text8", tmp_path / "text8", f"*tlen-{T}.[jt]*")


@pytest.mark.parametrize(("name", "split"), GPU_CASES)
def test_the_stream_is_the_ids_that_the_release_cut(name, split):
    with np.load(DATA / name / "ids.npz") as ids:
        wanted = ids[split][: len(ids[split]) // B * B]
    found = read_all(open_release_records(DATA / name), split)
    lanes = parse_lanes(DATA / name / "tfrecords" / f"{split}.bsz-{B}.tlen-{T}.tfrecords")
    np.testing.assert_array_equal(lanes, wanted.reshape(B, -1))
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == np.int32


@pytest.mark.parametrize(("name", "split"), TPU_CASES)
def test_of_the_form_for_tpus_the_whole_segments_are_read(tmp_path, name, split):
    with np.load(DATA / name / "ids.npz") as ids:
        wanted = ids[split][: len(ids[split]) // B * B].reshape(B, -1)
    records = open_release_records(copy_form(name, tmp_path / name, "*core-2*"))
    lanes = parse_lanes(DATA / name / "tfrecords" / f"{split}.bsz-{B}.tlen-{T}.core-2.tfrecords")
    assert lanes.shape[1] == (wanted.shape[1] - 1) // T * T + 1 < wanted.shape[1]
    np.testing.assert_array_equal(lanes, wanted[:, : lanes.shape[1]])
    np.testing.assert_array_equal(read_all(records, split), lanes.reshape(-1))


def test_several_files_are_read_one_after_the_other():
    folder = DATA / "lm1b" / "tfrecords"
    listing = json.loads((folder / f"record_info-train.bsz-{B}.tlen-{T}.json").read_text())
    wanted = [parse_lanes(folder / name).reshape(-1) for name in listing["filenames"]]
    assert len(wanted) == 6
    found = read_all(open_release_records(DATA / "lm1b"), "train")
    np.testing.assert_array_equal(found, np.concatenate(wanted))


def test_any_range_is_the_slice():
    records = open_release_records(DATA / "lm1b")
    whole, split = read_all(records, "train"), records.split("train")
    generator = np.random.default_rng(5)
    for start, stop in np.sort(generator.integers(0, len(whole) + 1, (200, 2))):
        np.testing.assert_array_equal(split.read(start, stop), whole[start:stop])


def test_what_describes_the_data_set_is_read(folder):
    records = open_release_records(folder)
    assert (records.dataset, records.n_token, records.cutoffs) == ("text8", 25, ())
    assert (records.splits, records.n_tokens("valid")) == (("train", "valid"), 5996)
    assert records.data_dir == str(folder / "tfrecords")
    assert records.n_documents("train") == len(records.split("train").document_starts) == 0
    assert records.vocabulary is None
    assert records.made_from["release2019"]["train"] == f"record_info-train.bsz-{B}.tlen-{T}.json"


def test_of_the_cutoffs_those_within_the_vocabulary_are_read(folder):
    info = {"dataset": "lm1b", "vocab_size": 997, "cutoffs": [0, 60, 100, 997, 6400, 997]}
    (folder / "corpus-info.json").write_text(json.dumps(info))
    assert open_release_records(folder).cutoffs == (60, 100)


def test_listings_and_description_may_lie_elsewhere(folder, tmp_path):
    (tmp_path / "listings").mkdir()
    for path in (folder / "tfrecords").glob("*.json"):
        path.rename(tmp_path / "listings" / path.name)
    (folder / "corpus-info.json").rename(tmp_path / "corpus.json")
    records = open_release_records(
        folder / "tfrecords",
        record_info_dir=str(tmp_path / "listings"),
        corpus_info_path=str(tmp_path / "corpus.json"),
    )
    assert (records.n_token, records.n_tokens("valid")) == (25, 5996)


def test_a_folder_with_listings_is_recognised(folder, tmp_path):
    assert holds_release_records(folder)
    assert holds_release_records(folder / "tfrecords")
    assert not holds_release_records(tmp_path)
    assert not holds_release_records("gs://bucket/folder")


# -- which listing


def add_cut(folder, split, cut):
    """Adds a listing of a split in another cut, whose files are not there."""
    source = folder / "tfrecords" / f"record_info-{split}.bsz-{B}.tlen-{T}.json"
    shutil.copy(source, source.with_name(f"record_info-{split}.{cut}.json"))


@pytest.mark.parametrize(
    ("batch_size", "tgt_len", "chosen"),
    [
        (B, T, f"bsz-{B}.tlen-{T}"),
        (3, 7, "bsz-3.tlen-7"),  # there for GPUs and for TPUs
        (3, 11, "bsz-3.tlen-11.core-2"),
    ],
)
def test_the_cut_that_is_wanted_is_taken(folder, batch_size, tgt_len, chosen):
    for cut in ("bsz-3.tlen-7", "bsz-3.tlen-7.core-2", "bsz-3.tlen-11.core-2"):
        add_cut(folder, "train", cut)
    records = open_release_records(folder, train_batch_size=batch_size, tgt_len=tgt_len)
    assert records.made_from["release2019"]["train"] == f"record_info-train.{chosen}.json"


def test_the_other_splits_may_have_a_batch_size_of_their_own(folder):
    for split in ("train", "valid"):
        add_cut(folder, split, "bsz-3.tlen-7")
        add_cut(folder, split, "bsz-5.tlen-7")
    records = open_release_records(folder, train_batch_size=3, eval_batch_size=5, tgt_len=7)
    assert records.made_from["release2019"] == {
        "train": "record_info-train.bsz-3.tlen-7.json",
        "valid": "record_info-valid.bsz-5.tlen-7.json",
    }


def test_several_cuts_of_which_none_is_wanted_are_listed(folder):
    add_cut(folder, "train", "bsz-3.tlen-7")
    records = open_release_records(folder, train_batch_size=3, tgt_len=32)
    with pytest.raises(
        RecordError,
        match=r"several cuts .* of record_info-train\.bsz-3\.tlen-7\.json, record_info-train",
    ):
        records.split("train")
    assert records.splits == ("valid",)


def test_a_split_that_is_not_there_is_named(folder):
    with pytest.raises(RecordError, match=r"has no split 'test'; it has train, valid\."):
        open_release_records(folder).split("test")


# -- the vocabulary


@pytest.mark.parametrize(("place", "python"), [(".", 3), ("tfrecords", 2)])
def test_the_symbols_are_those_of_the_pickled_corpus(folder, place, python):
    shutil.copy(DATA / "text8" / f"cache.py{python}.pkl", folder / place / "cache.pkl")
    vocabulary = open_release_records(folder).vocabulary
    assert vocabulary == load_vocabulary(DATA / "text8" / f"cache.py{python}.pkl")
    assert (vocabulary.level, len(vocabulary)) == ("char", 25)


def test_a_pickled_corpus_of_another_size_is_refused(folder):
    shutil.copy(DATA / "enwik8" / "cache.py3.pkl", folder / "cache.pkl")
    with pytest.raises(RecordError, match=r"cache\.pkl` has 64 symbols, but .*json` states 25\."):
        open_release_records(folder)
