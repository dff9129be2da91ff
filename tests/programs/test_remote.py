"""Addresses in the place of folders: tensorflow's ram:// stands in for gs:// and the like."""

import gzip
import importlib
import json
import threading
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from small_commands import run_main, write_data

import txl_tf
from txl_tf.data import files, open_records, read_ids
from txl_tf.data.records.format import RecordError
from txl_tf.data.records.writing import holds_records
from txl_tf.errors import UserError
from txl_tf.programs import average
from txl_tf.programs import prepare as make_tfrecords


@pytest.fixture
def address(tmp_path):
    """A place that no other test has; it is emptied in the end."""
    name = f"ram://{tmp_path.name}"
    yield name
    if tf.io.gfile.exists(name):
        tf.io.gfile.rmtree(name)


def read_losses(model_dir):
    with tf.io.gfile.GFile(f"{model_dir}/log.jsonl") as file:
        lines = map(json.loads, file.read().splitlines())
        return {line["step"]: line["loss_nats"] for line in lines}


def test_a_data_set_at_an_address_is_that_of_a_folder(address, tmp_path):
    write_data(tmp_path / "here")
    write_data(f"{address}/data")
    assert open_records(f"{address}/data").splits == ("train", "valid")
    for split in ("train", "valid"):
        there = read_ids(f"{address}/data", split)
        np.testing.assert_array_equal(there, read_ids(tmp_path / "here", split))
    assert not list(tmp_path.glob("ram:*"))
    with pytest.raises(RecordError, match=f"`{address}/data` already holds a data set"):
        write_data(f"{address}/data")


@pytest.mark.slow
def test_a_run_at_an_address_trains_resumes_and_is_averaged(address, tmp_path, capsys):
    data_dir, model_dir = write_data(tmp_path / "data"), f"{address}/run"
    more = ("--save_steps=4", "--eval_every=6", "--do_eval", "--keep_checkpoints=2")
    assert run_main(data_dir, model_dir, *more, "--max_hours=1e-9") == 3
    assert run_main(data_dir, model_dir, *more) == 0
    assert "Resuming from step 1." in capsys.readouterr().out
    assert run_main(data_dir, tmp_path / "whole", *more) == 0
    there, here = read_losses(model_dir), read_losses(str(tmp_path / "whole"))
    assert [there[step] for step in (6, 8, 12)] == [here[step] for step in (6, 8, 12)]
    for name in ("checkpoints/ckpt-8.index", "checkpoints/ckpt-12.index", "evaluations.jsonl"):
        assert tf.io.gfile.exists(f"{model_dir}/{name}")
    assert not tf.io.gfile.exists(f"{model_dir}/checkpoints/ckpt-1.index")  # not among the newest
    assert average.main(["average.py", model_dir, "--last=2"]) == 0
    assert tf.io.gfile.exists(f"{model_dir}/averaged/ckpt-12.index")
    assert not list(tmp_path.glob("ram:*"))


def test_an_address_that_tensorflow_does_not_know_is_one_line(capsys):
    arguments = ["make_tfrecords.py", "--dataset=pydoc", "--data_dir=nowhere://bucket/data"]
    assert make_tfrecords.main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("make_tfrecords.py: `nowhere://bucket/data/records.json` must be ")
    assert error.endswith(" Received: nowhere://\n")
    assert error.count("\n") == 1


def test_texts_at_an_address_are_those_of_a_folder(address, tmp_path):
    (tmp_path / "a.txt").write_text("one\n" * 7)
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.write("two\n" * 5)
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr("c", "three\n" * 3)
    for path in tmp_path.iterdir():
        tf.io.gfile.copy(str(path), f"{address}/texts/{path.name}")
    tf.io.gfile.makedirs(f"{address}/texts/folder")
    for place, name in ((tmp_path, "here"), (f"{address}/texts", "there")):
        flags = [f"--train={place}/*", "--level=char", "--documents=line"]
        flags.append(f"--data_dir={tmp_path}/{name}")
        assert make_tfrecords.main(["make_tfrecords.py", "--dataset=text", *flags]) == 0
    here, there = ((tmp_path / name / "records.json").read_text() for name in ("here", "there"))
    assert here == there


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("nowhere://a/*.txt", "Received: nowhere://"),
        ("ram://none/*.txt", "no file matches 'ram://none/*.txt'."),
        (
            "ram://none/**/a",
            "`**` is for local folders, not for addresses. Received: ram://none/**/a",
        ),
        ("ram://none/a.zip", "no file matches 'ram://none/a.zip'."),
    ],
)
def test_an_address_without_texts_is_one_line(pattern, line, tmp_path, capsys):
    arguments = ["make_tfrecords.py", "--dataset=text", f"--train={pattern}"]
    assert make_tfrecords.main([*arguments, f"--data_dir={tmp_path}/data"]) == 1
    assert read_error(capsys).endswith(line)


def test_the_program_writes_to_an_address(address, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("one two\n" * 50)
    arguments = ["make_tfrecords.py", "--dataset=text", f"--train={text}", f"--valid={text}"]
    arguments += ["--level=byte", f"--data_dir={address}/data"]
    assert make_tfrecords.main(arguments) == 0
    assert holds_records(f"{address}/data")
    assert make_tfrecords.main(arguments) == 0
    assert "nothing to do" in capsys.readouterr().out


def run_training(tmp_path, *flags):
    """Returns the exit status of a training whose records are there, unless a flag names others."""
    data_dir, model_dir = write_data(tmp_path / "data"), tmp_path / "run"
    status = run_main(data_dir, model_dir, *flags)
    assert not model_dir.exists()
    return status


def read_error(capsys):
    """Returns the only line of an error; what tensorflow remarks by itself comes with none."""
    (line,) = capsys.readouterr().err.splitlines()
    return line


PLACES = ["data_dir", "model_dir", "eval_ckpt_path", "warm_start_path"]


@pytest.mark.parametrize("flag", PLACES)
def test_an_unknown_scheme_is_one_line(flag, tmp_path, capsys):
    assert run_training(tmp_path, "--do_eval", f"--{flag}=s3://bucket/a") == 1
    line = read_error(capsys)
    assert line.startswith("train_gpu.py: `s3://bucket/a")
    assert (
        "must be a local path or an address that TensorFlow supports: file://, gs://, ram://"
        in line
    )


@pytest.mark.parametrize("name", ["attention", "context", "evaluate"])
def test_a_shared_model_in_place_of_a_run_folder_is_one_line(name, capsys):
    main = importlib.import_module(f"txl_tf.programs.{name}").main
    assert main(["x", "--run=hf://user/model"]) == 1
    assert 'txl_tf.load("hf://user/model").save("FOLDER")' in read_error(capsys)


@pytest.mark.parametrize("name", ["score", "generate", "evaluate", "export"])
def test_an_unknown_scheme_of_a_run_is_one_line(name, tmp_path, capsys):
    main = importlib.import_module(f"txl_tf.programs.{name}").main
    more = {"score": [__file__], "generate": ["--prompt=a"], "export": [f"--out={tmp_path / 'a'}"]}
    assert main(["x", "--run=s3://bucket/a", *more.get(name, [])]) == 1
    assert read_error(capsys).endswith("Received: s3://")


@pytest.fixture
def no_network(monkeypatch):
    """Has tensorflow find no host, as it would say."""

    def fail(path):
        raise tf.errors.FailedPreconditionError(None, None, "Could not resolve host\n\t when so")

    monkeypatch.setattr(tf.io.gfile, "exists", fail)


@pytest.mark.parametrize("flag", PLACES)
def test_an_address_that_cannot_be_reached_is_one_line(flag, no_network, tmp_path, capsys):
    assert run_training(tmp_path, "--do_eval", f"--{flag}=gs://bucket/a") == 1
    line = read_error(capsys)
    assert line.startswith("train_gpu.py: `gs://bucket/a")
    assert line.endswith("`: Could not resolve host")


def test_an_address_that_does_not_answer_is_given_up(monkeypatch, capsys):
    never = threading.Event()
    monkeypatch.setattr(tf.io.gfile, "exists", lambda path: never.wait())
    monkeypatch.setattr(files, "NOTICE_SECONDS", 0.01)
    monkeypatch.setattr(files, "PATIENCE_SECONDS", 0.02)
    with pytest.raises(UserError, match="gs://bucket did not answer within 0 seconds"):
        txl_tf.load("gs://bucket/a")
    assert read_error(capsys).startswith("gs://bucket has not answered yet; waiting ")
    never.set()


def test_a_storage_that_fails_later_is_an_error_of_the_system(address, monkeypatch):
    write_data(f"{address}/data")
    train = open_records(f"{address}/data").split("train")

    def fail(*_):
        raise tf.errors.UnavailableError(None, None, "gone\nand more")

    monkeypatch.setattr(tf.io.gfile.GFile, "read", fail)
    with pytest.raises(OSError, match=rf"^`{address}/data/train-.*`: gone$"):
        train.read(0, 7)
