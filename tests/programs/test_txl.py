"""The command `txl`: it lists the programs and runs them."""

import importlib
import re
import runpy
import sys

import pytest
from places import ROOT

import txl_tf
import txl_tf.__main__ as txl
from txl_tf.errors import name_program


def test_without_a_program_all_are_listed_with_a_line_each(capsys):
    assert txl.main(["/somewhere/bin/txl"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines if line[:2] == "  "}
    assert list(listed) == list(txl.PROGRAMS)
    assert listed["prepare"] == "Makes the records of a data set."


@pytest.mark.parametrize("program", txl.PROGRAMS)
def test_a_program_has_the_help_of_its_module(program, capsys, monkeypatch):
    main = importlib.import_module(txl.PROGRAMS[program]).main
    assert main([program, "--help"]) == 0
    expected = capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["txl"])
    assert txl.main(["txl", program.replace("_", "-"), "--help"]) == 0
    shown = capsys.readouterr().out
    examples = re.compile(r"(txl|python) .*\n")
    assert "python -m txl_tf." not in shown
    assert examples.sub("", shown) == examples.sub("", expected)


def test_an_unknown_program_is_an_error_of_one_line(capsys):
    assert txl.main(["txl", "genrate"]) == 2
    assert capsys.readouterr().err == "txl: unknown program genrate. Did you mean generate?\n"
    assert txl.main(["__main__.py", "errors"]) == 2
    expected = "python -m txl_tf: unknown program errors. python -m txl_tf lists the programs.\n"
    assert capsys.readouterr().err == expected


def test_help_of_a_program_may_be_asked_for_in_both_ways(capsys):
    assert txl.main(["txl", "inspect", "--help"]) == 0
    shown = capsys.readouterr().out
    assert txl.main(["txl", "help", "inspect"]) == 0
    assert capsys.readouterr().out == shown
    assert txl.main(["txl", "help", "trian"]) == 2
    assert capsys.readouterr().err == "txl: unknown program trian. Did you mean train?\n"


def test_an_error_names_the_program_as_the_user_wrote_it(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert txl.main(["bin/txl", "train_gpu"]) == 2
    assert capsys.readouterr().err.startswith("txl train: --data_dir must be given: ")
    main = importlib.import_module("txl_tf.export").main
    assert main(["/lib/txl_tf/export.py"]) == 2
    assert capsys.readouterr().err == "python -m txl_tf.export: --out must be given\n"
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", None)  # as if it were not installed
    assert txl.main(["bin/txl", "harness"]) == 1
    assert capsys.readouterr().err.startswith("txl harness: the harness needs the package")


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        ("/bin/txl", "txl prepare"),
        ("/lib/txl_tf/__main__.py", "python -m txl_tf prepare"),
        ("/lib/txl_tf/evaluate.py", "python -m txl_tf.make_tfrecords"),
        ("train_gpu.py", "python data_prep/make_tfrecords.py"),
    ],
)
def test_messages_name_programs_in_the_form_of_the_user(started, expected, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [started])
    assert name_program("make_tfrecords") == expected


@pytest.mark.filterwarnings("ignore:'txl_tf.__main__' found in sys.modules")
def test_the_package_runs_as_a_module(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["txl_tf/__main__.py", "--version"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("txl_tf", run_name="__main__")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"txl_tf {txl_tf.__version__}\n")
