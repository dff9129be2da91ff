import dataclasses
from pathlib import Path

import pytest

from txl_tf.preparation.options import PrepareOptions
from txl_tf.programs.cli.program import parse_flags
from txl_tf.programs.prepare import define_flags, make_options

NAMES = {field.name for field in dataclasses.fields(PrepareOptions)}


def read(*arguments):
    options = define_flags()
    parse_flags(options, ["make_tfrecords.py", *arguments])
    return make_options(options)


def test_flags_that_are_not_given_are_the_defaults_of_the_options():
    options = read("--dataset=text8", "--num_workers=1")
    assert options == PrepareOptions("text8", "data/text8", Path("raw/text8"))


def test_every_option_is_a_flag():
    assert set(define_flags()) >= NAMES


@pytest.mark.parametrize(
    ("arguments", "described"),
    [
        (["--dataset=pydoc"], {"dataset": "pydoc"}),
        (
            ["--dataset=lm1b", "--seed=3", "--raw_dir=x", "--num_workers=2"],
            {"dataset": "lm1b", "encoding_errors": "strict", "num_shuffles": 4, "seed": 3},
        ),
    ],
)
def test_records_remember_the_options_of_their_data_set_that_change_them(arguments, described):
    assert read(*arguments).describe() == described


def test_records_remember_lists_as_texts():
    described = read("--dataset=text", "--train=a", "--level=word", "--cutoffs=3,7").describe()
    assert described["cutoffs"] == ["3", "7"]
    assert described["special"] is None
    assert not {"train", "valid", "test", "vocab_file", "data_dir", "raw_dir"} & set(described)


def test_sizes_leave_only_the_published_size_of_the_vocabulary():
    options = PrepareOptions("shakespeare", "", Path(), test_size=5000)
    assert options.make_corpus().counts.keys() == {"vocabulary"}
