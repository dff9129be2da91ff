import json

import numpy as np
import pytest

from txl_tf.data.records.writing import TokenChunk, write_records
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.programs import prepare
from txl_tf.programs.inspect import main

TEXT = "the cat sat\non the mat\n\nthe <unk> sat on the dog\n"
WORDS = Vocabulary.learn("word", [TEXT], line_end="</s>", unknown="<unk>")


@pytest.fixture
def folder(tmp_path):
    ids = WORDS.encode(TEXT)
    write_records(
        tmp_path / "words",
        dataset="cats",
        vocabulary=WORDS,
        splits={"train": [TokenChunk(ids, np.array([0, 9]))], "valid": [ids[:5]], "test": []},
        cutoffs=(2, 3),
        made_from={"arguments": {"dataset": "text", "level": "word"}},
    )
    return tmp_path / "words"


def run(capsys, *arguments):
    """Returns the exit status, what was printed, and what was told as an error."""
    status = main(["inspect", *map(str, arguments)])
    output = capsys.readouterr()
    return status, output.out, output.err


def list_row(text, split):
    return next(line.split() for line in text.splitlines() if line.startswith(f"{split} "))


def test_a_data_set_its_splits_and_its_first_lines_are_shown(folder, capsys):
    status, text, _ = run(capsys, folder, "--lines=2")
    assert status == 0
    assert f"{folder}: cats\n" in text
    assert "made with dataset=text, level=word\n" in text
    assert "vocabulary: 8 words, unknown='<unk>', line_end='</s>'\n" in text
    assert "cutoffs: 2, 3\n" in text
    names = ["split", "tokens", "documents", "file", "bytes", "symbols", "used", "unknown"]
    assert list_row(text, "split") == names
    assert list_row(text, "train") == ["train", "16", "2", "32", "8", "6.250%"]
    assert list_row(text, "valid") == ["valid", "5", "0", "21", "5", "0.000%"]
    assert list_row(text, "test") == ["test", "0", "0", "0", "0", "0.000%"]
    assert "train begins:\n  the cat sat\n  on the mat\n\nAll" in text


def test_json_has_the_numbers_of_the_table(folder, capsys):
    status, text, _ = run(capsys, folder, "--json")
    found = json.loads(text)
    assert (status, found["dataset"], found["verified"]) == (0, "cats", True)
    assert found["vocabulary"] == {"level": "word", "symbols": 8}
    expected = {"tokens": 16, "documents": 2, "file_bytes": 32, "symbols_used": 8}
    assert found["splits"]["train"] == {**expected, "unknown": 1 / 16}


def test_checksums_are_verified_unless_told(folder, capsys):
    (path,) = folder.glob("train*.tfrecords")
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    status, _, error = run(capsys, folder)
    assert status == 1
    assert f"`{path}`: expected SHA-256 " in error
    assert error.count("\n") == 1
    status, text, _ = run(capsys, folder, "--verify=false", "--split=valid")
    assert status == 0
    assert "Tokens and checksums were not verified" in text
    assert "valid begins:\n  the cat sat\n  on\n" in text


def test_bytes_are_shown_as_bytes(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("aab\n")
    flags = ["--dataset=text", f"--train={tmp_path}/a.txt", f"--data_dir={tmp_path}/records"]
    assert prepare.main(["make_tfrecords.py", *flags]) == 0
    _, text, _ = run(capsys, tmp_path / "records")
    assert r"symbols: b'\x00' b'\x01' " in text


def test_lines_of_wide_characters_are_shown_whole(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("é" * 400, encoding="utf-8")
    flags = ["--dataset=text", f"--train={tmp_path}/a.txt", f"--data_dir={tmp_path}/records"]
    assert prepare.main(["make_tfrecords.py", *flags]) == 0
    capsys.readouterr()
    _, text, _ = run(capsys, tmp_path / "records", "--lines=3")
    line = f"  {'é' * 94}\n"
    assert f"train begins:\n{3 * line}\n" in text
