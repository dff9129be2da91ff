"""Records of the 2019 release become records of this package with the same ids."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from places import GOLDEN

from txl_tf.data import RecordError, open_records
from txl_tf.programs import prepare as make_tfrecords
from txl_tf.programs import train as train_gpu
from txl_tf.release import load_vocabulary
from txl_tf.release.records import convert_records

DATA = GOLDEN / "data"
LISTING = "record_info-train.bsz-4.tlen-32.json"
FILE = "train.bsz-4.tlen-32.tfrecords"
N_LANES = 4


def copy_release(name, folder, pattern="*tlen-32.[jt]*"):
    """Copies a golden data set as the release leaves it; without `.core-2`, for GPUs only."""
    (folder / "tfrecords").mkdir(parents=True)
    (cache,) = (DATA / name).glob("cache.py3.pkl")
    shutil.copy(cache, folder / "cache.pkl")
    shutil.copy(DATA / name / "corpus-info.json", folder)
    for path in (DATA / name / "tfrecords").glob(pattern):
        shutil.copy(path, folder / "tfrecords")
    return folder


@pytest.fixture
def source(tmp_path):
    return copy_release("text8", tmp_path / "text8")


@pytest.mark.parametrize("name", ["enwik8", "ptb", "text8", "wt103"])
def test_splits_have_the_ids_that_the_release_encoded(name, tmp_path):
    source = copy_release(name, tmp_path / name, "*")
    convert_records(source, str(tmp_path / "new"))
    records = open_records(tmp_path / "new")
    assert records.vocabulary == load_vocabulary(source / "cache.pkl", records.dataset)
    with np.load(DATA / name / "ids.npz") as ids:
        for split in ("train", "valid"):
            count = len(ids[split]) // N_LANES * N_LANES  # the rest filled no lane
            found = records.split(split).read(0, len(records.split(split)))
            np.testing.assert_array_equal(found, ids[split][:count])


def test_the_folder_of_the_records_may_be_the_current_one(source, tmp_path, monkeypatch):
    monkeypatch.chdir(source / "tfrecords")
    convert_records(".", str(tmp_path / "new"))
    assert open_records(tmp_path / "new").dataset == "text8"


def test_a_name_that_contradicts_the_vocabulary_is_dropped(tmp_path):
    """The script of the release for WikiText-103 says "enwik8"."""
    source = copy_release("wt103", tmp_path / "wt103")
    listing = source / "corpus-info.json"
    listing.write_text(json.dumps({**json.loads(listing.read_text()), "dataset": "enwik8"}))
    convert_records(source, str(tmp_path / "new"))
    assert open_records(tmp_path / "new").dataset == "unknown"


def test_files_follow_each_other(tmp_path):
    source = copy_release("lm1b", tmp_path / "lm1b")
    convert_records(source, str(tmp_path / "new"))
    files = json.loads((source / "tfrecords" / LISTING).read_text())["filenames"]
    first = tf.data.TFRecordDataset(str(source / "tfrecords" / files[0]))
    inputs = tf.io.parse_example([next(iter(first))], {"inputs": tf.io.RaggedFeature(tf.int64)})
    train = open_records(tmp_path / "new").split("train")
    np.testing.assert_array_equal(train.read(0, 32), inputs["inputs"][0])
    assert len(files) == 6


def test_the_tpu_form_lacks_the_end_of_each_lane(tmp_path):
    source = copy_release("text8", tmp_path / "text8", "*core-2*")
    convert_records(source, str(tmp_path / "new"))
    with np.load(DATA / "text8" / "ids.npz") as ids:
        lanes = ids["train"][: len(ids["train"]) // N_LANES * N_LANES].reshape(N_LANES, -1)
    train = open_records(tmp_path / "new").split("train")
    found = train.read(0, len(train)).reshape(N_LANES, -1)
    np.testing.assert_array_equal(found, lanes[:, : found.shape[1]])
    assert 0 < lanes.shape[1] - found.shape[1] <= 32


def test_cutoffs_within_the_vocabulary_are_kept(source, tmp_path):
    info = json.loads((source / "corpus-info.json").read_text())
    info["cutoffs"] = [0, 7, 13, 10_000, info["vocab_size"]]
    (source / "corpus-info.json").write_text(json.dumps(info))
    convert_records(source, str(tmp_path / "new"))
    assert open_records(tmp_path / "new").cutoffs == (7, 13)


def edit_listing(source, **changes):
    path = source / "tfrecords" / LISTING
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def flip_byte(source):
    path = source / "tfrecords" / FILE
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def mix_lanes(source):
    path = source / "tfrecords" / LISTING
    path.rename(path.with_name(LISTING.replace("bsz-4", "bsz-2")))


def drop_cutoffs(source):
    path = source / "corpus-info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"cutoffs": None}))


DAMAGE = {
    "is damaged, after": flip_byte,
    "is missing": lambda source: (source / "tfrecords" / FILE).unlink(),
    "lists 7 batches": lambda source: edit_listing(source, num_batch=7),
    "does not list records": lambda source: edit_listing(source, num_batch=None),
    "has no 2 lanes, each label": mix_lanes,
    "does not describe a corpus": lambda source: (source / "corpus-info.json").write_text("[]"),
    "have no cache.pkl": lambda source: (source / "cache.pkl").unlink(),
    "ids outside of the 997 symbols": lambda source: shutil.copy(
        DATA / "lm1b" / "cache.py3.pkl", source / "cache.pkl"
    ),
    "has no record_info": lambda source: shutil.rmtree(source / "tfrecords"),
    "does not describe a corpus of": drop_cutoffs,
    "does not list records of": lambda source: edit_listing(source, filenames=[1]),
    "does not list records of the 2019": lambda source: edit_listing(
        source, num_batch=float("inf")
    ),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_one_line_and_leaves_no_records(message, tmp_path):
    source = copy_release("ptb", tmp_path / "ptb")
    DAMAGE[message](source)
    with pytest.raises(RecordError, match=message) as error:
        convert_records(source, str(tmp_path / "new"))
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("new/*"))


def test_training_names_the_command_that_converts(source, tmp_path, capsys):
    flags = [f"--data_dir={source}", f"--model_dir={tmp_path / 'run'}"]
    assert train_gpu.main(["train_gpu.py", *flags]) == 1
    line = capsys.readouterr().err
    assert f"--dataset release2019 --raw_dir {source} --data_dir NEW_DIR\n" in line
    arguments = line.partition("txl prepare ")[2].replace("NEW_DIR", str(tmp_path / "new"))
    assert make_tfrecords.main(["make_tfrecords.py", *arguments.split()]) == 0
    assert "train: 39,996 tokens" in capsys.readouterr().out
