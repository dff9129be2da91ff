"""Pipelines make what the one-machine programs make: the same files, byte for byte."""

import gzip
import json
import re

import numpy as np
import pytest
from small_language_model import WORDS, make_model

from benchmarks.flag_texts import keep_last

pytest.importorskip("apache_beam", reason="pip install -e '.[beam]'")

import apache_beam as beam

from data_prep import make_tfrecords
from txl_tf.apps.beam.runner import Runner
from txl_tf.data.records.writing import write_records
from txl_tf.errors import UserError
from txl_tf.programs import score

TWO = ("direct_num_workers=2",)
THREADS = (*TWO, "direct_running_mode=multi_threading")
PROCESSES = (*TWO, "direct_running_mode=multi_processing")
PIECE = 83  # bytes
SAME = {"rel": 2e-5, "abs": 2e-5}  # float32


def write_texts(folder):
    """Writes texts of many kinds and returns the flags that name them."""
    rng = np.random.default_rng(3)
    words = [*(f"w{i}" for i in range(19)), "É", "<eos>", "= A ="]
    for name, n_lines in (("a", 61), ("b", 7), ("c", 1)):
        lines = [" ".join(rng.choice(words, rng.integers(0, 7))) for _ in range(n_lines)]
        mark = "\ufeff" * (name != "c")  # left out
        (folder / f"{name}.txt").write_text(
            f"{mark}\n \n" + "\n".join([*lines, "= A =", "", "end"])
        )
    with gzip.open(folder / "d.txt", "wt") as file:  # packed, and not divided
        file.write("w1 packed\n\nw2\n" * 5 + " ".join(rng.choice(words, 97)))
    (folder / "e.txt").touch()
    (folder / "f.txt").write_text("ends with a break\n\n")
    (folder / "valid.txt").write_text("w1 w2\n\nother W3\n")
    train = ",".join(str(folder / name) for name in ("a.txt", "[bc].txt", "d*", "[ef].txt"))
    return [f"--train={train}", f"--valid={folder / 'valid.txt'}"]


def prepare(folder, flags, name, *, options=None):
    """Calls the program, with a runner if it has options."""
    runner = () if options is None else ("--runner=DirectRunner", f"--piece_bytes={PIECE}")
    beam_options = [f"--beam_options={','.join(options)}"] if options else []
    command = ["--dataset=text", f"--data_dir={folder / name}", *flags, *runner, *beam_options]
    return make_tfrecords.main(["x", *keep_last(command)])


def read_folder(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def small_shards(monkeypatch):
    """Records of 7 tokens, 29 of them in a shard."""
    for name, size in (("tokens_per_record", 7), ("tokens_per_shard", 203)):
        monkeypatch.setitem(write_records.__kwdefaults__, name, size)


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (["--level=char", "--documents=line", "--unknown=?"], THREADS),
        (
            [
                *("--level=word", "--document_separator== A =", "--min_count=3", "--special=<s>"),
                *("--unknown=<unk>", "--lower_case", "--cutoffs=5,11"),
            ],
            (),
        ),
        (["--level=char", "--documents=none", "--unknown=?"], PROCESSES),
    ],
)
def test_a_pipeline_makes_the_same_files(tmp_path, flags, options, capsys):
    flags = [*write_texts(tmp_path), *flags]
    assert prepare(tmp_path, flags, "one") == 0
    expected_lines = capsys.readouterr().out.splitlines()
    assert prepare(tmp_path, flags, "two", options=options) == 0
    lines = capsys.readouterr().out.splitlines()
    assert read_folder(tmp_path / "two") == read_folder(tmp_path / "one")  # nothing else is left
    assert len(list((tmp_path / "two").glob("train-*.tfrecords"))) > 1
    kept = [line for line in lines if "Wrote" not in line]
    assert kept == [line for line in expected_lines if "Wrote" not in line]
    assert prepare(tmp_path, flags, "two", options=options) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_texts_and_records_may_be_at_addresses(tmp_path):
    flags = [*write_texts(tmp_path), "--level=char", "--unknown=?", "--documents=blank_line"]
    assert prepare(tmp_path, flags, "one") == 0
    at = f"file://{tmp_path}"  # stands in for gs:// and the like
    flags = [flag.replace(str(tmp_path), at) for flag in flags]
    flags += [f"--data_dir={at}/two", f"--temp_dir={at}/temporary"]
    for more in ([], ["--overwrite"]):
        assert prepare(tmp_path, [*flags, *more], "x", options=()) == 0
        assert read_folder(tmp_path / "two") == read_folder(tmp_path / "one")  # nothing else
        assert not list((tmp_path / "temporary").iterdir())


def test_wrong_texts_have_the_same_message(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("a b c\n" * 41)
    (tmp_path / "b.txt").write_bytes(b"a b c d\n" * 73 + b"\xff\n")
    (tmp_path / "v.txt").write_bytes(b"a\n")
    flags = [f"--train={tmp_path}/[ab].txt", f"--valid={tmp_path}/v.txt", "--level=char"]
    assert prepare(tmp_path, flags, "one") == 1
    expected = capsys.readouterr().err
    assert prepare(tmp_path, flags, "two", options=()) == 1
    found = capsys.readouterr().err
    assert found == expected
    assert re.search(r"`.*b\.txt`, line 74, byte offset \d+: byte 0xff", found)


@pytest.mark.parametrize("options", [(), PROCESSES])
def test_a_failed_pipeline_keeps_the_older_data_set(tmp_path, options, capfd):
    (tmp_path / "a.txt").write_text("a b c\n" * 41)
    flags = [f"--train={tmp_path}/a.txt", "--level=char"]
    assert prepare(tmp_path, flags, "two") == 0
    older = read_folder(tmp_path / "two")
    (tmp_path / "b.txt").write_bytes(b"a b c d\n" * 73 + b"\xff\n")
    capfd.readouterr()
    flags = [f"--train={tmp_path}/[ab].txt", "--level=char", "--overwrite"]
    assert prepare(tmp_path, flags, "two", options=options) == 1
    *others, line = capfd.readouterr().err.splitlines()
    assert not others or options == PROCESSES  # which write tracebacks themselves
    assert re.search(r"b\.txt`, line 74, byte offset \d+: byte 0xff", line)
    assert read_folder(tmp_path / "two") == older  # nothing else is left


def test_an_error_in_a_worker_is_explained_in_one_line(tmp_path):
    def fail(element):
        raise OSError("disk full")

    line = "^the pipeline failed on DirectRunner: OSError: disk full$"
    with pytest.raises(UserError, match=line):
        Runner().run(lambda start: start | beam.Create([3]) | beam.Map(fail), str(tmp_path))


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """A run, its SavedModel, and texts."""
    folder = tmp_path_factory.mktemp("scored")
    lm = make_model(len(WORDS), vocabulary=WORDS)
    lm.save(folder / "run")
    lm.export(folder / "served")
    rng = np.random.default_rng(5)
    for name, n_lines in (("one", 97), ("two", 13), ("three", 1)):
        lines = [
            " ".join(rng.choice(WORDS.symbols[1:], rng.integers(0, 9))) for _ in range(n_lines)
        ]
        (folder / f"{name}.txt").write_text("\n".join(lines))
    (folder / "empty.txt").touch()
    return folder


@pytest.mark.parametrize(
    ("model", "flags", "options"),
    [
        ("run", ["--by=document", "--prefix=the cat", "--per_token"], THREADS),
        ("served", ["--by=line", "--context=file"], ()),
    ],
)
def test_a_pipeline_gives_the_same_scores(scored, tmp_path, flags, options, model, capsys):
    names = ("one", "empty", "two", "three")
    arguments = ["x", f"--run={scored / model}", *(str(scored / f"{n}.txt") for n in names), *flags]
    fixed = [] if model == "served" else ["--jit=none"]
    command = [arguments[0], f"--run={scored / 'run'}", *arguments[2:], "--jit=none"]
    assert score.main([*command, "--format=jsonl"]) == 0
    expected = list(map(json.loads, capsys.readouterr().out.splitlines()))
    runner = ["--runner=DirectRunner", f"--piece_bytes={PIECE}", f"--out={tmp_path / 'out'}"]
    runner += [f"--beam_options={','.join(options)}"] if options else []
    assert score.main([*arguments, *fixed, *runner]) == 0
    files = sorted((tmp_path / "out").iterdir())
    assert len(files) > 2
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == found[-1]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for key, value in other.items():
            near = isinstance(value, float)
            assert one[key] == (pytest.approx(value, **SAME) if near else value) or key == "nats"
        # The first token of a text has no loss.
        losses = [[x for x in record.get("nats", ()) if x is not None] for record in (one, other)]
        assert losses[0] == pytest.approx(losses[1], **SAME)
        assert len(one.get("nats", ())) == len(other.get("nats", ()))


def test_a_line_that_cannot_be_encoded_is_named(scored, tmp_path, capsys):
    path = tmp_path / "wrong.txt"
    path.write_text("the cat\n" * 31 + "the dog\n")
    arguments = ["x", f"--run={scored / 'run'}", str(path), "--by=line", "--jit=none"]
    assert score.main(arguments) == 1
    expected = capsys.readouterr().err
    more = ["--runner=DirectRunner", "--piece_bytes=29", f"--out={tmp_path / 'out'}"]
    assert score.main([*arguments, *more]) == 1
    assert capsys.readouterr().err == expected
    assert "line 32, byte offset 252" in expected


def test_prism_is_not_downloaded(tmp_path, caplog):
    with caplog.at_level("INFO"):
        found = Runner().run(lambda pipeline: pipeline | beam.Create([3, 5]), str(tmp_path))
    assert sorted(found) == [3, 5]
    assert not [record for record in caplog.records if "rism" in record.getMessage()]
