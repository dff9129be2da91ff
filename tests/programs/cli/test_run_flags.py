"""The run and the data set that programs take if no flag names them; nothing needs TensorFlow."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from absl import flags

import txl_tf
from txl_tf.config import AttentionSpan, ModelConfig
from txl_tf.errors import UserError
from txl_tf.pretrained import find_pretrained, is_pretrained
from txl_tf.programs import generate
from txl_tf.programs import prepare as make_tfrecords
from txl_tf.programs.cli.flags import parse_flags
from txl_tf.programs.cli.run_flags import (
    choose_out,
    choose_run,
    define_run_flag,
    find_only_data_set,
    open_run_records,
    warn_of_no_memory,
)
from txl_tf.programs.cli.train_flags import choose_folders, define_flags
from txl_tf.runs.folder import remember_data

PYDOC = find_pretrained("pydoc")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make(*folders, file="config.json"):
    """Makes folders with a file, which holds the config of the shipped model."""
    for name in folders:
        Path(name).mkdir(parents=True)
        Path(name, file).write_bytes(Path(PYDOC, "config.json").read_bytes())


def choose(*arguments, multiple=False):
    """Returns the run that a program reads."""
    options = flags.FlagValues()
    define_run_flag(options, multiple=multiple)
    parse_flags(options, ["read.py", *arguments], positional="run")
    choose_run(options)
    return options.run


def train(*arguments):
    """Returns the folders of data and run of a training command."""
    options = define_flags()
    parse_flags(options, ["train.py", *arguments])
    choose_folders(options)
    return options.data_dir, options.model_dir


def test_without_a_run_the_shipped_model_is_read_and_told(capsys):
    assert choose() == PYDOC
    assert capsys.readouterr().err == (
        "--run=pydoc: the model that comes with the package, as there is no run under runs/.\n"
    )


def test_the_only_run_is_read_and_told(capsys):
    make("runs/a")
    Path("runs/logs").mkdir()
    assert choose() == "runs/a"
    assert capsys.readouterr().err == "--run=runs/a: the only run under runs/.\n"


def test_of_several_runs_one_must_be_named():
    make("runs/b", "runs/a")
    message = "--run must be given, as there are several runs: runs/a, runs/b$"
    with pytest.raises(flags.Error, match=message):
        choose()
    assert choose("runs/b") == "runs/b"


def test_many_runs_are_not_all_listed():
    make(*(f"runs/{index}" for index in range(10, 23)))
    with pytest.raises(flags.Error, match=r"runs/18, runs/19 and 3 more$"):
        choose()


@pytest.mark.parametrize("arguments", [["pydoc"], ["--run=pydoc"], ["--model_dir=pydoc"]])
def test_the_shipped_model_has_a_name(arguments, capsys):
    assert choose(*arguments) == PYDOC
    assert capsys.readouterr().err == ""


def test_a_group_of_runs_may_hold_the_shipped_model():
    make("runs/a")
    assert choose("runs/a", "pydoc", multiple=True) == ["runs/a", PYDOC]
    assert choose(multiple=True) == ["runs/a"]


def test_a_run_of_a_group_whose_path_is_not_utf_8_is_refused():
    make("runs/caf\udce9")
    with pytest.raises(UserError, match=r"^--run: .*surrogates not allowed"):
        choose(multiple=True)


def test_a_model_without_memory_is_told_by_the_run_that_was_given(capsys):
    for encoding in ("relative", "sinusoid"):  # the second generates nothing
        config = ModelConfig(n_token=5, encoding=encoding)
        lm = SimpleNamespace(run=None, span=AttentionSpan(0), config=config)
        warn_of_no_memory(lm, encoding)
    warning = "warning: `relative` evaluates with mem_len 0: each new token will see only the one"
    assert capsys.readouterr().err == f"{warning} before\n"


def test_nothing_is_written_into_the_shipped_model():
    options = flags.FlagValues()
    flags.DEFINE_string("out", None, "", flag_values=options)
    options(["x"])
    with pytest.raises(flags.Error, match="--out must be given: nothing is written into the pack"):
        choose_out(options, PYDOC, "attention")
    assert choose_out(options, "runs/a", "attention") == "runs/a/attention"
    assert [is_pretrained(path) for path in (PYDOC, f"{PYDOC}/", "pydoc")] == [True, True, False]


def test_training_takes_the_only_data_set_and_names_the_run_after_it(capsys):
    make("data/books", file="records.json")
    assert train() == ("data/books", "runs/books")
    assert capsys.readouterr().err.splitlines() == [
        "--data_dir=data/books: the only data set under data/.",
        "--model_dir=runs/books: named after the data.",
    ]


@pytest.mark.parametrize(
    "data_dir", ["x/books", "/x/books/", "gs://x/books", "x/books/tfrecords", "x/../books"]
)
def test_a_new_run_has_the_name_of_its_data(data_dir):
    assert train(f"--data_dir={data_dir}") == (data_dir, "runs/books")


def test_records_where_the_release_wrote_them_are_found():
    make("data/text8/tfrecords", file="records.json")
    assert train() == ("data/text8/tfrecords", "runs/text8")


def test_an_existing_run_keeps_its_own_data():
    make("data/books", file="records.json")
    make("runs/books")
    remember_data("runs/books", "data/books", {})
    found = os.path.abspath("data/books")
    assert train() == (found, "runs/books")
    assert train("--run=runs/books") == (found, "runs/books")
    assert train("--run=runs/new") == ("data/books", "runs/new")


@pytest.mark.parametrize("arguments", [(), ("--model_dir=runs/new",)])
def test_of_several_data_sets_one_must_be_named(arguments):
    make("data/b", "data/a", file="records.json")
    message = "--data_dir must be given, as there are several data sets: data/a, data/b$"
    with pytest.raises(flags.Error, match=message):
        train(*arguments)


def test_without_a_data_set_a_command_that_makes_one_is_told():
    with pytest.raises(flags.Error, match=r"no data set under data/. To make one: .* --dataset py"):
        find_only_data_set()


def test_a_wrong_split_is_told_before_data_are_asked_for():
    with pytest.raises(flags.Error, match=r"--split must be .* tset. Did you mean test\?"):
        open_run_records(PYDOC, None, "tset")
    with pytest.raises(flags.Error, match="--data_dir must be given"):
        open_run_records(PYDOC, None, "test")


@pytest.mark.parametrize(
    ("name", "works"),
    [("jax", "CausalLM, models, layers, presets, configs and data"), ("torch", "presets")],
)
def test_another_backend_is_one_line(name, works, monkeypatch, capsys):
    monkeypatch.setenv("KERAS_BACKEND", name)
    assert generate.main(["generate", "--prompt=a"]) == 1
    assert capsys.readouterr().err.startswith(
        f"generate: the backend of Keras must be tensorflow. Received: {name}, from the "
        f"environment variable KERAS_BACKEND. With {name}, only {works}"
    )
    assert make_tfrecords.main(["prepare", "--dataset=pydoc"]) == 1
    assert "the backend of Keras must be tensorflow" in capsys.readouterr().err
    with pytest.raises(UserError, match="the backend of Keras must be tensorflow"):
        txl_tf.load("pydoc")


def test_another_backend_in_the_settings_of_keras_names_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    Path("keras.json").write_text(json.dumps({"backend": "jax"}))
    with pytest.raises(UserError, match=f"Received: jax, from `{tmp_path}/keras.json`"):
        choose()
    Path("keras.json").write_text("[")
    assert choose() == PYDOC
