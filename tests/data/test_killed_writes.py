import signal
import subprocess
import sys

import numpy as np
import pytest
from places import ROOT

from txl_tf.data.records.format import RecordError
from txl_tf.data.records.reading import read_ids, verify_records
from txl_tf.data.records.writing import write_records
from txl_tf.data.text.vocabulary import Vocabulary

LETTERS = Vocabulary("char", tuple("abcdefg"))
IDS = np.random.default_rng(5).integers(0, 7, 101)


def write(folder, chunks=(IDS,)):
    return write_records(
        folder,
        dataset="letters",
        vocabulary=LETTERS,
        splits={"train": chunks, "valid": [np.full(13, 3)]},
        tokens_per_record=11,
        tokens_per_shard=37,
        overwrite=True,
    )


def list_files(folder):
    return sorted(path.name for path in folder.iterdir())


# Writes a data set of 8 files and kills itself: after the first chunk, or before a file is moved.
KILLED = """
import os, signal, sys
import numpy as np
from txl_tf.data import Vocabulary, write_records

folder, n_moved = sys.argv[1], int(sys.argv[2])

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def iterate_chunks():
    yield np.full(83, 5)
    if n_moved < 0:
        die()
    yield np.full(18, 6)

def move(source, target, moved=[]):
    if len(moved) == n_moved:
        die()
    moved.append(os.rename(source, target))

os.replace = move
splits = {"train": iterate_chunks(), "valid": [np.full(13, 3)]}
write_records(folder, dataset="letters", vocabulary=Vocabulary("char", tuple("abcdefg")),
              splits=splits, tokens_per_record=11, tokens_per_shard=37, overwrite=True)
"""


def run_killed(folder, n_moved):
    ran = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(n_moved)], cwd=ROOT)
    assert ran.returncode == -signal.SIGKILL


@pytest.mark.parametrize("n_moved", [-1, 3, 6])
def test_a_killed_overwrite_leaves_the_older_data_set_whole(tmp_path, n_moved):
    write(tmp_path)
    run_killed(tmp_path, n_moved)
    verify_records(tmp_path)
    np.testing.assert_array_equal(read_ids(tmp_path, "train"), IDS)


def test_a_killed_first_write_leaves_nothing_that_matters(tmp_path):
    run_killed(tmp_path, 3)
    with pytest.raises(RecordError, match="holds no records"):
        read_ids(tmp_path, "train")
    assert any(path.name.startswith(".writing-") for path in tmp_path.iterdir())
    info = write(tmp_path, [np.repeat([5, 6], [83, 18])])
    verify_records(tmp_path)
    files = [file.file for file in info.iterate_files()]
    assert list_files(tmp_path) == sorted([*files, "records.json", "vocab.txt"])
