"""The command `txl`: it lists the programs and runs them."""

import importlib
import runpy
import sys

import pytest
from places import ROOT

import txl_tf
import txl_tf.__main__ as txl


def test_without_a_program_all_are_listed_with_a_line_each(capsys):
    assert txl.main(["/somewhere/bin/txl"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines if line[:2] == "  "}
    assert list(listed) == txl.PROGRAMS
    assert listed["prepare"] == "Creates the records of a data set."


@pytest.mark.parametrize("program", txl.PROGRAMS)
def test_a_program_has_the_help_of_its_module(program, capsys, monkeypatch):
    main = importlib.import_module(f"txl_tf.programs.{program}").main
    assert main([program, "--help"]) == 0
    expected = capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["txl"])
    assert txl.main(["txl", program.replace("_", "-"), "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown == expected


def test_an_unknown_program_is_an_error_of_one_line(capsys):
    assert txl.main(["txl", "genrate"]) == 2
    assert capsys.readouterr().err == "txl: unknown program genrate. Did you mean generate?\n"
    assert txl.main(["__main__.py", "errors"]) == 2
    assert capsys.readouterr().err == "txl: unknown program errors. txl lists the programs.\n"


def test_help_of_a_program_may_be_asked_for_in_both_ways(capsys):
    assert txl.main(["txl", "inspect", "--help"]) == 0
    shown = capsys.readouterr().out
    assert txl.main(["txl", "help", "inspect"]) == 0
    assert capsys.readouterr().out == shown
    assert txl.main(["txl", "help", "trian"]) == 2
    assert capsys.readouterr().err == "txl: unknown program trian. Did you mean train?\n"


def test_an_error_names_the_program_as_the_user_wrote_it(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert txl.main(["bin/txl", "train"]) == 2
    assert capsys.readouterr().err.startswith("txl train: --data_dir must be given: ")
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", None)  # as if it were not installed
    assert txl.main(["bin/txl", "harness"]) == 1
    assert capsys.readouterr().err.startswith("txl harness: the harness needs the package")


def test_every_file_of_the_programs_is_one_of_txl():
    assert {path.stem for path in (ROOT / "txl_tf/programs").glob("[a-z]*.py")} == set(txl.PROGRAMS)


@pytest.mark.filterwarnings("ignore:'txl_tf.__main__' found in sys.modules")
def test_the_package_runs_as_a_module(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["txl_tf/__main__.py", "--version"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("txl_tf", run_name="__main__")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"txl_tf {txl_tf.__version__}\n")
