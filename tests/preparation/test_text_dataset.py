"""`--dataset text`: the user's own files."""

import gzip
import json
import os

import numpy as np
import pytest

from txl_tf.data import Vocabulary, open_records, read_ids
from txl_tf.programs import prepare

TEXT = "the cat sat\non the mat\n\nthe Ünd\n"


def call(folder, *arguments):
    flags = [f"--data_dir={folder / 'records'}", *arguments]
    return prepare.main(["make_tfrecords.py", "--dataset=text", *map(str, flags)])


@pytest.fixture
def files(tmp_path):
    """Returns a folder with a training and a validation text, and the flags for them."""
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").write_text("the mat\n")
    return tmp_path, [f"--train={tmp_path}/a.txt", f"--valid={tmp_path}/b.txt"]


def test_training_files_in_another_split_are_warned_of(files, capsys):
    folder, flags = files
    assert call(folder, *flags) == 0
    assert capsys.readouterr().err == ""
    (folder / "link.txt").symlink_to(folder / "a.txt")
    assert call(folder, *flags, f"--test={folder}/*.txt", "--overwrite") == 0
    assert capsys.readouterr().err == (
        "warning: test contains training text, so its losses will be too low: "
        f"{folder}/a.txt, {folder}/link.txt in both\n"
    )


def test_a_test_split_of_the_text_that_is_cut_is_warned_of(files, capsys):
    folder, flags = files
    assert call(folder, flags[0], "--valid_fraction=.3", f"--test={folder}/a.txt") == 0
    assert "warning: test contains training text" in capsys.readouterr().err


def test_a_fault_in_text_that_is_cut_is_told_with_its_line(files, capsys):
    folder, flags = files
    (folder / "a.txt").write_bytes(b"good line\n" * 9 + b"bad \xff\n")
    assert call(folder, flags[0], "--valid_fraction=.3", "--level=char") == 1
    assert "line 10, byte offset 94: byte 0xff" in capsys.readouterr().err


def read_text(folder, split):
    return open_records(folder).vocabulary.decode(read_ids(folder, split))


@pytest.mark.parametrize(
    ("cutoffs", "status", "has_file"), [("2,6", 0, False), ("2,7", 1, False), ("2,7", 1, True)]
)
def test_cutoffs_lie_within_the_vocabulary(files, cutoffs, status, has_file, capsys):
    folder, flags = files
    (folder / "v.txt").write_text("\n".join(["<eos>", *dict.fromkeys(TEXT.split())]))
    vocabulary = [f"--vocab_file={folder}/v.txt"] if has_file else []
    assert call(folder, *flags, "--level=word", f"--cutoffs={cutoffs}", *vocabulary) == status
    if status:
        assert capsys.readouterr().err == (
            "make_tfrecords.py: `cutoffs` must be below the size of the vocabulary, 7. "
            "Received: cutoffs=2,7\n"
        )
        assert not (folder / "records").exists()
    else:
        assert open_records(folder / "records").cutoffs == (2, 6)


def test_a_vocabulary_file_without_symbols_is_not_replaced_by_another(files, capsys):
    folder, flags = files
    (folder / "v.json").write_text('{"level": "word", "symbols": []}')
    assert call(folder, *flags, "--level=word", f"--vocab_file={folder}/v.json") == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (folder / "records").exists()


@pytest.mark.parametrize("level", ["byte", "char", "word", "subword"])
def test_a_text_comes_back_at_every_level(files, level):
    folder, flags = files
    sizes = ["--max_symbols=280"] if level == "subword" else []
    assert call(folder, *flags, f"--level={level}", *sizes) == 0
    assert read_text(folder / "records", "train") == TEXT
    assert read_text(folder / "records", "valid") == "the mat\n"
    assert open_records(folder / "records").vocabulary.level == level


def test_the_ids_of_bytes_are_the_bytes(files):
    folder, flags = files
    assert call(folder, *flags) == 0
    assert read_ids(folder / "records", "train").tolist() == list(TEXT.encode())
    assert open_records(folder / "records").vocabulary.symbols == tuple(map(str, range(256)))


def test_bytes_may_have_other_ids_by_a_vocabulary_that_is_brought(files):
    folder, flags = files
    symbols = [str(byte) for byte in range(255, -1, -1)]
    (folder / "v.json").write_text(json.dumps({"level": "byte", "symbols": symbols}))
    assert call(folder, *flags, f"--vocab_file={folder}/v.json") == 0
    assert read_ids(folder / "records", "valid").tolist() == [255 - byte for byte in b"the mat\n"]


def test_many_files_of_many_kinds_are_read_in_order(tmp_path):
    (tmp_path / "c.txt").write_text("third")
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.write("second ")
    (tmp_path / "a.txt").write_text("first ")
    assert call(tmp_path, f"--train={tmp_path}/[ab].txt*,{tmp_path}/c.txt") == 0
    assert read_text(tmp_path / "records", "train") == "first second third"
    starts = open_records(tmp_path / "records").split("train").document_starts
    assert starts.tolist() == [0, 6, 13]


@pytest.mark.parametrize(
    ("flags", "starts"),
    [
        (["--documents=none"], []),
        (["--documents=file"], [0]),
        (["--documents=line"], [0, 12, 23, 24]),
        (["--documents=blank_line"], [0, 24]),
        (["--document_separator=on the mat"], [0, 23]),
    ],
)
def test_documents_begin_where_they_are_said_to(files, flags, starts):
    folder, arguments = files
    assert call(folder, *arguments, "--level=char", *flags) == 0
    assert open_records(folder / "records").split("train").document_starts.tolist() == starts


def test_unknown_words_are_counted_and_refused(files, capsys):
    folder, flags = files
    (folder / "b.txt").write_text("dog q dog\n")
    assert call(folder, *flags, "--level=word") == 1
    error = capsys.readouterr().err
    assert "valid: 3 words, 2 different ones, are not in the vocabulary" in error
    assert "--unknown" in error
    assert not (folder / "records").exists()


def test_unknown_words_become_the_symbol_for_them(files, capsys):
    folder, flags = files
    (folder / "b.txt").write_text("the dog\n")
    assert call(folder, *flags, "--level=word", "--unknown=<unk>") == 0
    assert "valid: 1 unknown (33.33%) replaced by <unk>" in capsys.readouterr().out
    assert read_text(folder / "records", "valid") == "the <unk>\n"


def test_special_symbols_that_stand_in_a_text_are_counted(files, capsys):
    folder, flags = files
    (folder / "a.txt").write_text("the <eos> cat <eos>\n<pad> mat\n")
    (folder / "b.txt").write_text("the cat\n")
    assert call(folder, *flags, "--level=word", "--special=<pad>", "--num_workers=1") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "special symbols" in line]
    assert lines == [
        "train: words spelled like special symbols get these symbols' ids: <eos> 2 times, "
        "<pad> 1 time"
    ]


def test_rare_words_are_left_out(files, capsys):
    folder, flags = files
    flags = [*flags, "--level=word", "--unknown=<unk>"]
    assert call(folder, *flags, "--min_count=2") == 0
    assert open_records(folder / "records").vocabulary.symbols == ("<eos>", "<unk>", "the")
    assert call(folder, *flags, "--max_symbols=4", "--overwrite") == 0
    assert open_records(folder / "records").vocabulary.symbols == ("<eos>", "<unk>", "the", "cat")


def test_words_are_converted_to_lower_case_on_request(files):
    folder, flags = files
    assert call(folder, *flags, "--level=word", "--lower_case", "--line_end=") == 0
    vocabulary = open_records(folder / "records").vocabulary
    assert "ünd" in vocabulary.symbols
    assert vocabulary.decode(vocabulary.encode("THE\nÜND")) == "the ünd"


def test_a_vocabulary_can_be_brought(files):
    folder, flags = files
    (folder / "v.txt").write_text("<unk> 0\nmat 7\nthe 5\n<eos>\n")
    assert call(folder, *flags, "--level=word", f"--vocab_file={folder}/v.txt") == 0
    assert read_ids(folder / "records", "valid").tolist() == [2, 1, 3]


def test_words_that_lower_case_removes_are_refused(files, capsys):
    folder, flags = files
    (folder / "v.txt").write_text("<UNK>\nThe\nÄ\na\nB\nC\n<eos>\n")
    flags += ["--level=word", "--lower_case", f"--vocab_file={folder}/v.txt"]
    assert call(folder, *flags) == 1
    assert "no text contains 'The', 'Ä', 'B' and other words with" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["", "file://"])
def test_the_vocabulary_of_a_run_can_be_brought(files, address):
    folder, flags = files
    data = {"level": "char", "symbols": ["e", "t"], "unknown": "e"}
    (folder / "v.json").write_text(json.dumps(data))
    assert call(folder, *flags, "--level=char", f"--vocab_file={address}{folder}/v.json") == 0
    np.testing.assert_array_equal(read_ids(folder / "records", "valid"), [1, 0, 0, 0, 0, 0, 1, 0])


def test_the_vocabulary_of_a_run_is_kept_as_it_is(files):
    folder, flags = files
    vocabulary = Vocabulary("word", ("tee", "t", "e", "<unk>", "et"))
    (folder / "v.json").write_text(json.dumps(vocabulary.to_json()))
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text("t e et tee\n")
    assert call(folder, *flags, "--level=word", f"--vocab_file={folder}/v.json") == 0
    assert open_records(folder / "records").vocabulary == vocabulary


def test_the_unknown_symbol_of_the_vocabulary_of_a_run_can_be_chosen(files, capsys):
    folder, flags = files
    (folder / "v.json").write_text(json.dumps({"level": "char", "symbols": ["e", "t"]}))
    flags.append(f"--vocab_file={folder}/v.json")
    assert call(folder, *flags, "--level=char", "--unknown=t") == 0
    np.testing.assert_array_equal(read_ids(folder / "records", "valid"), [1, 1, 0, 1, 1, 1, 1, 1])
    for flag in ("--lower_case", "--line_end=x"):
        assert call(folder, *flags, "--level=word", flag) != 0
        assert "has no effect: --vocab_file determines it" in capsys.readouterr().err


def test_names_of_files_need_not_be_utf8(files):
    folder, flags = files
    path = folder / os.fsdecode(b"caf\xe9.txt")
    (folder / "b.txt").rename(path)
    assert call(folder, flags[0], f"--valid={path}") == 0
    records = folder / "records"
    assert open_records(records).made_from["files"]["valid"] == [[path.name, 8]]


def test_records_stay_when_their_texts_are_gone(files, capsys):
    folder, flags = files
    assert call(folder, *flags) == 0
    (folder / "a.txt").unlink()
    assert call(folder, *flags) == 0
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize("level", ["byte", "word", "subword"])
def test_the_number_of_workers_changes_nothing(files, level, monkeypatch):
    folder, flags = files
    monkeypatch.setattr("txl_tf.data.text.text_files.CHUNK_BYTES", 17)
    (folder / "a.txt").write_text("".join(f"w{i % 97} und Üb{i % 7}\n" for i in range(997)))
    (folder / "b.txt").write_text("w5 und\n")
    contents = []
    for workers in (1, 3):
        arguments = [*flags, f"--level={level}", f"--num_workers={workers}", "--overwrite"]
        sizes = ["--max_symbols=300"] if level == "subword" else []
        assert call(folder, *arguments, *sizes) == 0
        paths = sorted((folder / "records").iterdir())
        contents.append([(path.name, path.read_bytes()) for path in paths])
    assert contents[0] == contents[1]


def test_a_data_set_is_up_to_date_when_its_vocabulary_file_is_gone(files, capsys):
    folder, flags = files
    (folder / "v.txt").write_text("<unk> 0\nmat 7\nthe 5\n<eos>\n")
    flags += ["--level=word", f"--vocab_file={folder}/v.txt"]
    assert call(folder, *flags) == 0
    (folder / "v.txt").unlink()
    assert call(folder, *flags) == 0
    assert "nothing to do" in capsys.readouterr().out
