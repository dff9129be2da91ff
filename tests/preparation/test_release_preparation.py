"""Command lines of the 2019 release's data program."""

import shutil

import numpy as np
import pytest
from places import GOLDEN

from txl_tf.data import read_ids
from txl_tf.programs import prepare

DATA = GOLDEN / "data"
CUT = ("--tgt_len=150", "--per_host_train_bsz=60", "--per_host_valid_bsz=60")


def call(*arguments):
    return prepare.main(["make_tfrecords.py", *map(str, arguments)])


@pytest.fixture
def ptb(tmp_path):
    """A folder of texts, as the release wants it."""
    (tmp_path / "ptb").mkdir()
    for split in ("train", "valid", "test"):
        shutil.copy(DATA / "ptb" / f"{split}.txt", tmp_path / "ptb")
    return tmp_path / "ptb"


def test_records_are_written_beside_the_texts_of_the_data_folder(ptb, capsys):
    assert call("--dataset=ptb", f"--data_dir={ptb}/", *CUT, "--use_tpu=False") == 0
    with np.load(DATA / "ptb" / "ids.npz") as ids:
        for split in ("train", "valid", "test"):
            np.testing.assert_array_equal(read_ids(ptb / "tfrecords", split), ids[split])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:4]] == [*CUT, "--use_tpu=false"]
    assert lines[4] == (
        f"As in the 2019 release, texts are read from `{ptb}/` and records are written to "
        f"`{ptb}/tfrecords`; with --raw_dir, records are written to --data_dir itself."
    )


def test_the_command_line_for_the_test_split_finds_the_work_done(ptb, capsys):
    assert call("--dataset=ptb", f"--data_dir={ptb}", *CUT) == 0
    capsys.readouterr()
    assert call("--dataset=ptb", f"--data_dir={ptb}", "--per_host_test_bsz=10") == 0
    assert capsys.readouterr().out.endswith(
        "already made with the same arguments: nothing to do.\n"
    )


def test_with_raw_dir_records_are_written_to_data_dir(ptb, tmp_path):
    places = (f"--raw_dir={ptb}", f"--data_dir={tmp_path / 'records'}")
    assert call("--dataset=ptb", *places, *CUT) == 0
    assert (tmp_path / "records" / "records.json").is_file()
    assert not (ptb / "tfrecords").exists()


def test_the_number_of_orders_has_two_names(tmp_path):
    for name, flag in (("1", "--num_shuffle=2"), ("2", "--num_shuffles=2")):
        places = (f"--raw_dir={DATA / 'lm1b'}", f"--data_dir={tmp_path / name}")
        assert call("--dataset=lm1b", *places, flag) == 0
    ids = [read_ids(tmp_path / name, "train") for name in "12"]
    np.testing.assert_array_equal(*ids)


def test_a_released_corpus_without_texts_is_named_and_nothing_is_downloaded(tmp_path, capsys):
    folder = tmp_path / "tf_wt103" / "data"
    folder.mkdir(parents=True)
    shutil.copy(DATA / "wt103" / "cache.py2.pkl", folder / "cache.pkl")
    arguments = ("--dataset=wt103", f"--data_dir={folder}/", "--per_host_test_bsz=16")
    assert call(*arguments) == 1
    assert (
        f"`{folder}` holds a corpus of the 2019 release, cache.pkl, and no texts. Convert its "
        f"splits to records with: txl import_release --source {folder.parent} "
        "--out MODEL_DIR\n"
    ) in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["cache.pkl"]
