"""The attention program from its command line to its files, on tiny runs."""

import json
import shutil

import numpy as np
import pytest

import txl_tf
from txl_tf.data import open_records, read_ids, write_records
from txl_tf.lab.text_attention import read_attention
from txl_tf.programs import attention

pytestmark = pytest.mark.slow

FILES = {
    "attention.json",
    "attention.npz",
    "attention-by-distance.png",
    "attention-by-term.png",
    "attention-of-heads.png",
}


def call(*arguments):
    return attention.main(["attention.py", *map(str, arguments), "--jit=none"])


def test_a_run_shows_its_attention(run, tmp_path, capsys):
    arguments = ["--heads=0.2,0.0", "--start=31", "--length=9", "--tokens=37"]
    assert call("--run", run, "--out", tmp_path / "out", *arguments) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == (
        "Reading valid with tgt_len 5, mem_len 7, same_length false, clamp_len -1, 2 lanes, "
        "warmed by 30 tokens."
    )
    assert lines[1] == "Mean attention weights over 40 targets, by layer.head:"
    assert [line.split()[0] for line in lines[2:6]] == ["head", "0.0", "0.1", "0.2"]
    assert lines[-1].endswith(f"into {tmp_path / 'out'}")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    record = json.loads((tmp_path / "out" / "attention.json").read_text())
    assert (record["split"], record["step"], record["targets"]) == ("valid", 12, 40)
    assert record["stretch"]["heads"] == ["0.2", "0.0"]
    # The text before the stretch fills the memory, so the weights are those of the whole text.
    lm = txl_tf.load(run)
    ids = open_records(run / "records").split("valid").read(0, 39)
    weights = read_attention(lm, ids, mask_empty_memory=False).weights[0][[2, 0], 30:39]
    found = np.load(tmp_path / "out" / "attention.npz")["stretch_weights"]
    first = record["stretch"]["first_key"]
    np.testing.assert_allclose(found, weights[..., first:], rtol=0, atol=1e-6)


def test_by_default_heads_look_farthest_and_files_are_in_the_run(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    assert call(tmp_path / "run", "--split=test") == 0
    folder = tmp_path / "run" / "attention"
    assert {path.name for path in folder.iterdir()} == FILES
    record = json.loads((folder / "attention.json").read_text())
    widest = sorted(record["heads"], key=lambda row: -row["mean_distance"])
    assert record["stretch"]["heads"] == [row["head"] for row in widest]
    assert record["stretch"]["length"] == 40
    assert record["targets"] == 148


def test_the_data_set_is_that_of_the_records(run, tmp_path):
    own = open_records(run / "records")
    splits = {"valid": [read_ids(run / "records", "valid")]}
    write_records(tmp_path / "data", dataset="tiny", vocabulary=own.vocabulary, splits=splits)
    assert call("--run", run, f"--data_dir={tmp_path / 'data'}", f"--out={tmp_path / 'out'}") == 0
    record = json.loads((tmp_path / "out" / "attention.json").read_text())
    assert record["dataset"] == "tiny"


def test_the_span_can_be_changed(run, tmp_path):
    span = ["--tgt_len=3", "--mem_len=11", "--same_length", "--clamp_len=4"]
    assert call(run, *span, f"--out={tmp_path / 'out'}", "--max_distance=6", "--lanes=1") == 0
    arrays = np.load(tmp_path / "out" / "attention.npz")
    assert arrays["weights"].shape == (1, 3, 12)
