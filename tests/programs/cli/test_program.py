import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from absl import flags

import txl_tf
from txl_tf.errors import UserError
from txl_tf.programs import harness
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import program, run_program
from txl_tf.programs.cli.run_flags import define_threads_flag
from txl_tf.progress import QUIET


def make_options():
    options = flags.FlagValues()
    define_flag(options, "folder", str, None, "Where.", required=True)
    define_flag(options, "n_rows", int, 7, "How many.", lower_bound=1)
    define_flag(options, "rate", float, 0.5, "How fast.")
    define_flag(options, "chatty", bool, False, "Whether to talk.")
    define_flag(options, "parts", list, [], "Which.")
    return options


def run(*arguments, main=lambda options: None):
    return run_program("Counts rows.", make_options(), main, ["bin/count.py", *arguments])


def fail_with(error):
    def main(_):
        raise error

    return main


def test_a_program_gets_the_flags_that_were_given():
    seen = []
    arguments = ("--folder=a", "--n_rows", "3", "--chatty", "--parts=x,y", "--rate=2")
    assert run(*arguments, main=seen.append) == 0
    (options,) = seen
    assert (options.folder, options.n_rows, options.chatty) == ("a", 3, True)
    assert (options.parts, options.rate) == (["x", "y"], 2.0)


def test_a_decorated_function_is_a_program_of_a_command_line(capsys):
    @program("Counts rows.", make_options, positional="folder")
    def main(options):
        return options.n_rows

    assert main(["bin/count.py", "a", "--n_rows=3"]) == 3
    assert main(["bin/count.py", "--n_rows=3"]) == 2  # without a folder
    assert capsys.readouterr().err == "count.py: --folder must be given\n"


def test_version_names_packages_backend_and_devices_and_runs_nothing(capsys):
    import keras
    import tensorflow as tf

    assert run("--version", main=fail_with(AssertionError())) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"txl_tf {txl_tf.__version__}"
    assert f"tensorflow {tf.__version__}" in lines[2]
    assert f"keras {keras.__version__}" in lines[2]
    assert lines[3] == f"backend of Keras: {keras.backend.backend()}"
    assert lines[4].startswith("devices: ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--folder=a", "--n_row=3"], "unknown flag --n_row. Did you mean --n_rows?"),
        (["--folder=a", "3", "b"], "only flags are expected. Received: 3 b"),
    ],
)
def test_a_wrong_command_line_is_answered_in_one_line(capsys, arguments, line):
    assert run(*arguments, main=fail_with(AssertionError())) == 2
    assert capsys.readouterr().err == f"count.py: {line}\n"


def test_a_flag_may_have_an_upper_bound_of_its_own():
    options, seen = make_options(), []
    define_flag(options, "seed", int, 0, "Of all.", upper_bound=2**40)
    argv = ["bin/count.py", "--folder=a", f"--seed={2**40}"]
    assert run_program("Counts.", options, seen.append, argv) == 0
    assert seen[0].seed == 2**40


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("`a` is wrong.\n  Received: 3"), 1, "`a` is wrong. Received: 3"),
        (OSError(28, "No space left", "runs/a"), 1, "`runs/a`: No space left"),
        (flags.Error("--a and --b"), 2, "--a and --b"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=["user", "system", "flags", "keyboard"],
)
def test_an_error_is_one_line_and_a_status(capsys, error, status, line):
    assert run("--folder=a", main=fail_with(error)) == status
    captured = capsys.readouterr()
    assert captured.err == f"count.py: {line}\n"
    assert captured.out == ""


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError, match="by 0"):
        run("--folder=a", main=fail_with(ZeroDivisionError("by 0")))


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["a", "--n_rows=3", "b"], ["a", "b"]),
        (["--chatty", "-", "a,b"], ["-", "a,b"]),
        (["--names=a", "b", "--", "--c"], ["a", "b", "--c"]),
        ([], []),
    ],
)
def test_one_flag_may_take_all_that_is_no_flag(arguments, names):
    options, seen = make_options(), []
    define_flag(options, "names", str, [], "Whose.", multiple=True)
    argv = ["bin/count.py", "--folder=x", *arguments]
    assert run_program("Counts.", options, seen.append, argv, positional="names") == 0
    assert seen[0].names == names


def test_help_says_which_flag_takes_the_arguments_without_one(capsys):
    argv = ["bin/count.py", "--help"]
    assert run_program("Counts.", make_options(), print, argv, positional="folder") == 0
    assert "Arguments without a flag are for --folder. " in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--place=a"], ["--place=a,gs://b/c"]])
def test_a_flag_that_names_files_takes_their_names(arguments):
    options = flags.FlagValues()
    define_flag(options, "place", list, [], "Where.", is_path=True)
    assert run_program("Counts.", options, lambda options: None, ["x", *arguments]) == 0


MISSING = {
    "txl_tf.programs.train": "--model_dir=x/run --data_dir=x/data",
    "txl_tf.programs.page": "--run=x --out=page.html",
    "txl_tf.programs.samples": "--run=x",
    "txl_tf.programs.attention": "--run=x",
    "txl_tf.programs.context": "--run=x",
    "txl_tf.programs.inspect": "x",
    "txl_tf.programs.evaluate": "--run=x",
    "txl_tf.programs.export": "--run=x --out=y",
    "txl_tf.programs.export_release": "--run=x --out=y",
    "txl_tf.programs.generate": "--run=x --prompt=a",
    "txl_tf.programs.import_release": "--source=x --out=y",
    "txl_tf.programs.score": f"--run=x {__file__}",
    "txl_tf.programs.serve": "x",
    "txl_tf.programs.average": "x",
    "txl_tf.programs.verify_release": "x",
}


def test_a_missing_folder_is_told_before_tensorflow_is_loaded():
    code = f"""
import importlib, sys
for name, arguments in {MISSING!r}.items():
    assert importlib.import_module(name).main([name, *arguments.split()]) == 1, name
    assert "tensorflow" not in sys.modules, name
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == len(MISSING)


def test_a_reader_that_has_enough_ends_a_program_without_a_word():
    main = "lambda options: [print(row) for row in range(100_000)]"
    code = f"from test_program import run; raise SystemExit(run('--folder=a', main={main}))"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"0\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_a_closed_standard_error_ends_a_program_with_the_status(monkeypatch):
    monkeypatch.setattr(sys, "stderr", mock.Mock(write=mock.Mock(side_effect=BrokenPipeError)))
    assert run("--folders") == 2


def test_the_harness_ends_as_quietly_if_its_reader_has_enough(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr(harness, "run_harness", lambda argv: print("help", end=""))
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert harness.main(["harness", "--help"]) == 141


def test_paths_and_messages_are_utf8_in_any_locale():
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "txl_tf", "inspect", "dätä/日"],
        capture_output=True,
        check=False,
        cwd=Path(__file__).parents[3],
        env=os.environ | locale,
    )
    assert done.returncode == 1
    assert "`dätä/日` holds no records" in done.stderr.decode()


def test_flags_may_stand_in_a_file(tmp_path):
    (tmp_path / "flags").write_text("--folder=a\n--n_rows=5\n")
    seen = []
    assert run(f"--flagfile={tmp_path / 'flags'}", main=seen.append) == 0
    assert (seen[0].folder, seen[0].n_rows) == ("a", 5)


@pytest.mark.parametrize(("flag", "has_traceback"), [("--noverbose", False), ("--verbose", True)])
def test_a_failure_has_a_traceback_if_it_is_wanted(flag, has_traceback, capsys, monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    for error in (UserError("no such thing"), flags.Error("no such value")):
        assert run("--folder=a", flag, main=fail_with(error)) != 0
        assert ("Traceback" in capsys.readouterr().err) == has_traceback


def test_quiet_and_threads_are_told_to_those_who_follow_them(monkeypatch):
    monkeypatch.setenv(QUIET, "")
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "2")
    options = make_options()
    define_threads_flag(options)
    arguments = ["count.py", "--folder=a", "--quiet", "--threads=3"]
    assert run_program("Counts rows.", options, lambda _: None, arguments) == 0
    assert (os.environ[QUIET], os.environ["TF_NUM_INTRAOP_THREADS"]) == ("1", "3")
