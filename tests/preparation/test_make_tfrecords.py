import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from places import GOLDEN, ROOT

from benchmarks.flag_texts import keep_last
from txl_tf.data import open_records, read_ids
from txl_tf.data.download import PublishedFile
from txl_tf.preparation.corpora import CORPORA
from txl_tf.programs import prepare

DATA = GOLDEN / "data"


def make_command(*arguments):
    program = str(ROOT / "data_prep" / "make_tfrecords.py")
    return [sys.executable, program, *map(str, arguments)]


def run(*arguments, cwd=ROOT):
    return subprocess.run(
        make_command(*arguments), capture_output=True, text=True, check=False, cwd=cwd
    )


def call(*arguments):
    """Runs the program in this process, which spares the import of tensorflow."""
    return prepare.main(["make_tfrecords.py", *keep_last(map(str, arguments))])


@pytest.fixture
def text8(tmp_path):
    """Returns flags that make a small text8."""
    return [
        "--dataset=text8",
        f"--raw_dir={DATA / 'text8'}",
        f"--data_dir={tmp_path / 'records'}",
        "--valid_size=6000",
        "--test_size=6000",
    ]


def list_contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_program_writes_to_data_and_the_name(tmp_path):
    done = run("--dataset=text8", f"--raw_dir={DATA / 'text8' / 'splits'}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    expected = np.load(DATA / "text8" / "ids.npz")["valid"]
    np.testing.assert_array_equal(read_ids(tmp_path / "data/text8", "valid"), expected)


def test_bytes_and_characters_need_no_tensorflow(text8):
    code = (
        "import sys; from txl_tf.programs import prepare; "
        "status = prepare.main(['x', *sys.argv[1:]]); "
        "sys.exit(status or 'tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, *text8], check=False, cwd=ROOT)
    assert done.returncode == 0


def test_a_second_run_needs_no_raw_files_and_does_nothing(text8, tmp_path, capsys):
    assert call(*text8) == 0
    before = list_contents(tmp_path / "records")
    capsys.readouterr()
    text8[1] = f"--raw_dir={tmp_path / 'gone'}"
    assert call(*text8, "--num_workers=3") == 0
    assert capsys.readouterr().out.endswith(
        "already made with the same arguments: nothing to do.\n"
    )
    assert list_contents(tmp_path / "records") == before


def test_other_arguments_are_refused(text8, tmp_path, capsys):
    assert call(*text8) == 0
    before = list_contents(tmp_path / "records")
    assert call(*text8, "--test_size=5000") == 1
    error = capsys.readouterr().err
    assert "made with test_size=6000" in error
    assert "--overwrite" in error
    assert list_contents(tmp_path / "records") == before


def test_other_files_are_refused(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("abc")
    arguments = ["--dataset=text", f"--train={tmp_path}/*.txt", f"--data_dir={tmp_path / 'x'}"]
    assert call(*arguments) == 0
    (tmp_path / "a.txt").write_text("abcd")
    assert call(*arguments) == 1
    assert "other files, or files of other sizes" in capsys.readouterr().err


def test_overwrite_replaces_the_records(text8, tmp_path):
    assert call(*text8) == 0
    assert call(*text8, "--test_size=5000", "--overwrite") == 0
    assert len(read_ids(tmp_path / "records", "test")) == 4999  # stripped of a space
    names = {path.name for path in (tmp_path / "records").iterdir()}
    assert len(names) == 5  # three shards, vocab.txt, records.json


@pytest.mark.slow
def test_a_killed_run_leaves_no_records_and_the_next_cleans_up(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"some bytes\n" * 6_000_000)
    folder = tmp_path / "records"
    arguments = ("--dataset=text", f"--train={tmp_path}/a.txt", f"--data_dir={folder}")
    process = subprocess.Popen(make_command(*arguments, "--num_workers=1"), cwd=tmp_path)
    while process.poll() is None and not list(folder.glob(".writing-*/train-00000")):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run was over before it was killed"
    assert not (folder / "records.json").exists()
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert not list(folder.glob(".writing-*"))
    assert open_records(folder).n_tokens("train") == 66_000_000


def test_a_missing_raw_file_is_named_with_its_address(tmp_path, capsys, monkeypatch):
    nowhere = PublishedFile("text8.zip", ("http://127.0.0.1:9/text8.zip",))
    monkeypatch.setitem(CORPORA, "text8", replace(CORPORA["text8"], published=(nowhere,)))
    raw_dir = tmp_path / "raw"
    arguments = ("--dataset=text8", f"--raw_dir={raw_dir}", f"--data_dir={tmp_path / 'x'}")
    assert call(*arguments) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    for part in ("text8.zip", "http://127.0.0.1:9/text8.zip", str(raw_dir)):
        assert part in error


def test_sizes_are_refused_where_the_splits_are_cut_already(tmp_path, capsys):
    arguments = ["--dataset=text8", f"--raw_dir={DATA / 'text8' / 'splits'}", "--valid_size=7"]
    assert call(*arguments, f"--data_dir={tmp_path / 'x'}") == 1
    assert "are for the raw file `text8`, which is not in" in capsys.readouterr().err


def test_the_records_remember_how_they_were_made(text8, tmp_path):
    assert call(*text8) == 0
    made_from = json.loads((tmp_path / "records/records.json").read_text())["made_from"]
    assert made_from["arguments"]["valid_size"] == 6000
    assert made_from["files"]["train"] == [["text8", 52_000]]
    assert str(tmp_path) not in json.dumps(made_from)
