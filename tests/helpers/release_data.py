"""Copies of the golden records of the 2019 release."""

import shutil

from places import GOLDEN

DATA = GOLDEN / "data"
B, T = 4, 32  # of the golden records


def read_all(records, split):
    tokens = records.split(split)
    return tokens.read(0, len(tokens))


def copy_form(name, folder, pattern):
    """Copies the listings and files of a golden data set that a pattern names."""
    (folder / "tfrecords").mkdir(parents=True)
    shutil.copy(DATA / name / "corpus-info.json", folder)
    for path in (DATA / name / "tfrecords").glob(pattern):
        shutil.copy(path, folder / "tfrecords")
    return folder
