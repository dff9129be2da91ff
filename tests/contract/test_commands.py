"""All commands that the pages and the scripts of 2019 show are accepted."""

import re
import sys

import pytest
from called_programs import call, forbid_network, list_files
from page_commands import list_commands
from release_command_lines import (
    SCRIPTS,
    make_data_flags,
    make_released_flags,
    make_test_data_flags,
    make_test_flags,
    make_training_flags,
)

from txl_tf.__main__ import PROGRAMS

# Programs whose commands are not checked, and why. The pages also show other programs than those
# of the package (benchmarks, examples, docker, pip): they are not checked either.
LEFT_OUT = {
    "txl_tf.programs.check": "it needs no file, so it would run",
    "txl_tf.programs.harness": "its arguments are those of lm_eval, which fetches a task",
}
# The folders that pages may leave out, usually with dots, and a name that stands for a number.
NEEDED = {
    "txl_tf.programs.train": ("data_dir", "model_dir"),
    "txl_tf.programs.train_tpu": ("data_dir", "model_dir"),
    "txl_tf.programs.evaluate": ("run",),
    "txl_tf.programs.score": ("run",),
    "txl_tf.programs.attention": ("run",),
    "txl_tf.programs.generate": ("run",),
}
NUMBERS = {"N": "3"}
# What ends a command whose flags are right: there is no run, no data, no text, or no Beam.
MISSING = re.compile(
    r"holds no run|holds no record|holds no TensorFlow checkpoint|no file matches|does not exist"
    r"|\.(index|safetensors|pb) is missing|must be a folder|--runner needs the package"
)

COMMANDS = list_commands()
CHECKED = {name: command for name, command in COMMANDS.items() if command[0] not in LEFT_OUT}
DATA_FLAGS = (make_data_flags, make_test_data_flags)
RELEASE_COMMANDS = [
    (name, make) for make in (make_training_flags, make_test_flags, *DATA_FLAGS) for name in SCRIPTS
]


def complete(program, arguments):
    """Returns arguments with the folders that a page leaves out, and local ones for remote ones."""
    if program.startswith("txl_tf.programs.train"):
        arguments = [word for word in arguments if word != "..."]
    given = " ".join(arguments)
    names = [name for name in NEEDED.get(program, ()) if f"--{name}" not in given]
    if "--run" in given and "model_dir" in names:
        names.remove("model_dir")  # two names of one flag
    if names == ["run"] and not given.startswith("-"):
        names = []  # it is the first argument
    return [f"--{name}=missing" for name in names] + [
        NUMBERS.get(word, word.replace("gs://", "")) for word in arguments
    ]


def check_accepted(program, arguments, monkeypatch):
    """Checks that a command fails for a missing file alone, after its flags have been read."""
    forbid_network(monkeypatch)
    monkeypatch.setattr("txl_tf.programs.cli.run_flags.find_pretrained", lambda name: name)
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    before = list_files()
    outcome = call(program, *arguments)
    if "--help" in arguments:
        assert (outcome.status, outcome.err) == (0, "")
    else:
        assert outcome.status == 1, outcome.err
        assert MISSING.search(outcome.err), outcome.err
        assert outcome.err.count("\n") == 1
    assert list_files() == before


@pytest.mark.parametrize(("program", "arguments"), CHECKED.values(), ids=CHECKED)
def test_a_command_of_a_page_is_accepted(program, arguments, tmp_path, monkeypatch):
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    # What would be downloaded has no folder to go to.
    if "--download" in arguments:
        (folder / "runs").touch()
    if "--dataset" in arguments and "text" not in arguments:
        (folder / "data").touch()
    check_accepted(program, complete(program, arguments), monkeypatch)


def test_the_pages_show_every_program():
    assert {program for program, _ in COMMANDS.values()} == {
        f"txl_tf.programs.{name}" for name in PROGRAMS
    }


@pytest.mark.parametrize(("name", "make"), RELEASE_COMMANDS)
def test_a_command_of_a_script_of_2019_is_accepted(name, make, tmp_path, monkeypatch):
    script = SCRIPTS[name]
    (tmp_path / "data").touch()
    (tmp_path / "scripts").mkdir()
    monkeypatch.chdir(tmp_path / "scripts")
    arguments = write_flags(make(script))
    program = "txl_tf.programs.train"
    if make in DATA_FLAGS:
        program = "txl_tf.programs.prepare"
    elif script.hosts:
        program, arguments = "txl_tf.programs.train_tpu", ["--tpu=name", *arguments]
    check_accepted(program, arguments, monkeypatch)


@pytest.mark.parametrize("name", ["enwik8", "text8", "wt103", "lm1b"])
def test_a_command_of_2019_for_released_weights_is_accepted(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_accepted("txl_tf.programs.train", write_flags(make_released_flags(name)), monkeypatch)


def write_flags(given):
    """Returns flags as the scripts write them: --name=value, True and False."""
    return [f"--{name}={value}" for name, value in given.items()]
