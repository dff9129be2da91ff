"""What is shown of TensorFlow's remarks, and when the environment is changed for that."""

import os
from unittest import mock

import pytest
from absl import flags

import txl_tf
from txl_tf import release, training
from txl_tf.programs.cli.program import run_program

LEVEL = "TF_CPP_MIN_LOG_LEVEL"


@pytest.fixture(autouse=True)
def environment():
    """The environment of the process without the level; as it was afterwards."""
    with mock.patch.dict(os.environ):
        os.environ.pop(LEVEL, None)
        yield


def run(*arguments):
    """Runs a program; returns the level that it sees."""
    seen = []
    main = lambda _: seen.append(os.environ[LEVEL])  # noqa: E731
    assert run_program("Starts.", flags.FlagValues(), main, ["x", *arguments]) == 0
    return seen[0]


def test_a_program_hides_remarks_unless_it_is_verbose():
    assert run() == "2"
    assert run("--verbose") == "0"


@pytest.mark.parametrize("level", ["0", "1", "3"])
def test_the_level_of_the_user_counts(level):
    os.environ[LEVEL] = level
    assert run() == level


@pytest.mark.parametrize(
    ("package", "name"),
    [
        (txl_tf, "TransformerXL"),
        (txl_tf, "load"),
        (txl_tf, "training"),
        (training, "TrainStep"),
        (release, "load_model"),
    ],
)
def test_the_library_hides_remarks_once_a_name_needs_tensorflow(package, name):
    package.__getattr__(name)
    assert os.environ[LEVEL] == "2"


@pytest.mark.parametrize("name", ["ModelConfig", "UserError", "data", "presets"])
def test_names_that_need_no_tensorflow_change_nothing(name):
    txl_tf.__getattr__(name)
    assert LEVEL not in os.environ
