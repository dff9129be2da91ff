from dataclasses import replace
from pathlib import Path

import pytest

from txl_tf.data import open_records
from txl_tf.preparation.corpora import CORPORA
from txl_tf.preparation.options import PrepareOptions
from txl_tf.preparation.prepare import prepare
from txl_tf.programs import prepare as program

WT2 = CORPORA["wt2"]


def call(folder):
    """Makes a wt2 of 102 training tokens."""
    raw = folder / "raw"
    raw.mkdir()
    for split, text in (("train", "a\n" * 50 + "a"), ("valid", "a\n"), ("test", "a\n")):
        Path(raw / f"{split}.txt").write_text(text)
    flags = ["--dataset=wt2", f"--raw_dir={raw}", f"--data_dir={folder / 'records'}"]
    return program.main(["make_tfrecords.py", *flags])


@pytest.fixture
def publish(monkeypatch):
    """Changes what is known of the published wt2."""
    return lambda **changes: monkeypatch.setitem(CORPORA, "wt2", replace(WT2, **changes))


def test_a_set_with_the_published_counts_is_not_remarked_on(tmp_path, capsys, publish):
    publish(counts={"train": 102, "valid": 2, "test": 2, "vocabulary": 2})
    assert call(tmp_path) == 0
    assert "the published set" not in capsys.readouterr().out


def test_a_part_of_a_set_is_remarked_on(tmp_path, capsys, publish):
    publish(counts={"train": 997, "valid": 2, "test": 2, "vocabulary": 3})
    assert call(tmp_path) == 0
    out = capsys.readouterr().out
    assert "wt2, train: 102; the published set has 997." in out
    assert "wt2, vocabulary: 2; the published set has 3." in out


def test_a_set_with_nearly_the_published_counts_is_refused(tmp_path, capsys, publish):
    publish(counts={"train": 103, "valid": 2, "test": 2})
    assert call(tmp_path) == 1
    assert "train: 102; the published set has 103. A file is damaged" in capsys.readouterr().err
    assert not (tmp_path / "records").exists()


def test_cutoffs_above_the_vocabulary_are_left_out_with_a_line(tmp_path, capsys, publish):
    publish(cutoffs=(1, 7))
    assert call(tmp_path) == 0
    assert "The cutoffs (1, 7) became (1,): there are only 2 symbols." in capsys.readouterr().out
    assert open_records(tmp_path / "records").cutoffs == (1,)


def test_options_alone_make_what_the_command_line_makes(tmp_path):
    assert call(tmp_path) == 0
    prepare(PrepareOptions("wt2", str(tmp_path / "again"), tmp_path / "raw"))
    made, again = (tmp_path / name / "records.json" for name in ("records", "again"))
    assert again.read_text() == made.read_text()
