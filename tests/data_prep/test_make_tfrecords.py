import errno
import os
import subprocess
import sys
from pathlib import Path

import make_tfrecords
import numpy as np
import pytest

from txl_tf.data import read_ids

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "data"


def run(*arguments, cwd=ROOT):
    return subprocess.run(
        [sys.executable, str(ROOT / "data_prep" / "make_tfrecords.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def call(*arguments):
    """Runs the program in this process, which spares the import of tensorflow."""
    return make_tfrecords.main(["make_tfrecords.py", *map(str, arguments)])


def test_the_program_writes_the_ids_of_the_2019_release(tmp_path):
    done = run(
        "--dataset=text8",
        f"--raw_dir={GOLDEN / 'text8'}",
        "--valid_size=6000",
        "--test_size=6000",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    expected = np.load(GOLDEN / "text8" / "ids.npz")
    for split in ("train", "valid", "test"):
        np.testing.assert_array_equal(read_ids(tmp_path / "data/text8", split), expected[split])


def test_the_program_prints_what_it_made(tmp_path, capsys):
    status = call(
        "--dataset=enwik8",
        f"--raw_dir={GOLDEN / 'enwik8'}",
        f"--data_dir={tmp_path}",
        "--valid_size=5000",
        "--test_size=5000",
        "--drop_newlines",
    )
    assert status == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:-1] == [
        "The raw file of enwik8 has 40,000 bytes; the published one has 100,000,000.",
        "train: 29,806 tokens",
        "valid: 4,966 tokens",
        "test: 4,972 tokens",
        "vocabulary: 64 bytes",
    ]
    assert lines[-1].startswith(f"Wrote `{tmp_path}` in ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--dataset must be given"),
        (("--dataset=text9",), "unknown data set 'text9'. Known: pydoc, text8, enwik8"),
        (("--dataset=text8", "--colour=red"), "unknown flag --colour"),
        (("--dataset=text8", "--valid_size=0"), "--valid_size=0: 0 is not a positive integer"),
        (("--dataset=text8", "rest"), "flags only are expected. Received: rest"),
        (("--dataset=text8", "--drop_newlines"), "--drop_newlines is for enwik8"),
        (("--dataset=pydoc", "--raw_dir=x"), "--raw_dir is for text8 and enwik8"),
    ],
)
def test_a_wrong_flag_is_one_line_and_status_2(arguments, message, capsys):
    assert call(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_process_exits_with_status_2_for_a_wrong_flag():
    done = run("--dataset=text9")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "make_tfrecords.py: unknown data set 'text9'. Known: pydoc, text8, enwik8"
    ]


def test_the_process_exits_with_status_1_for_a_missing_raw_file(tmp_path):
    done = run("--dataset=text8", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "make_tfrecords.py: `raw/text8/text8` is missing, and so is `raw/text8/text8.zip`. "
        "Get http://mattmahoney.net/dc/text8.zip and put it into `raw/text8`."
    ]


def test_help_names_every_flag(capsys):
    assert call("--help") == 0
    text = capsys.readouterr().out
    for name in ("dataset", "data_dir", "raw_dir", "valid_size", "test_size", "overwrite"):
        assert f"--{name}" in text or f"--[no]{name}" in text


def test_help_imports_no_tensorflow():
    code = (
        "import sys, make_tfrecords; make_tfrecords.main(['x', '--help']); "
        "sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, cwd=ROOT / "data_prep", env=environment
    )
    assert done.returncode == 0


def test_existing_records_are_refused_before_the_corpus_is_read(tmp_path, capsys):
    (tmp_path / "records.json").write_text("{}")
    assert call("--dataset=text8", f"--raw_dir={tmp_path}", f"--data_dir={tmp_path}") == 1
    assert "already holds a data set" in capsys.readouterr().err


def test_a_full_disk_is_one_line_and_status_1(tmp_path, capsys, monkeypatch):
    def fail(*_arguments, **_keywords):
        raise OSError(errno.ENOSPC, "No space left on device", "train-00000")

    monkeypatch.setattr(make_tfrecords, "write_records", fail)
    arguments = ["--dataset=text8", f"--raw_dir={GOLDEN / 'text8'}", f"--data_dir={tmp_path}"]
    assert call(*arguments, "--valid_size=7", "--test_size=5") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == "make_tfrecords.py: [Errno 28] No space left on device: 'train-00000'"


def test_a_text_is_encoded_piece_by_piece(monkeypatch):
    monkeypatch.setattr(make_tfrecords, "_CHUNK_SIZE", 3)
    vocabulary = make_tfrecords.Vocabulary.learn("char", ["abcde"])
    chunks = list(make_tfrecords.encode_chunks("valid", "abcde", vocabulary))
    assert [len(chunk) for chunk in chunks] == [3, 2]
    np.testing.assert_array_equal(np.concatenate(chunks), [0, 1, 2, 3, 4])
