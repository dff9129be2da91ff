"""How flags are defined, checked and described; how programs answer, test_program.py tells."""

import subprocess
import sys

import pytest
from absl import flags
from places import ROOT

from txl_tf.programs import evaluate, generate, score
from txl_tf.programs.cli.flags import (
    SYNONYMS,
    define_flag,
    define_second_name,
    format_help,
    parse_flags,
)
from txl_tf.programs.cli.train_flags import define_flags

NO_PATH = "it must name a file or a folder (is a shell variable not set?)"


def read(*arguments, kind=str, default=None, **rules):
    """Returns the value that a flag has after a command line, or raises."""
    options = flags.FlagValues()
    define_flag(options, "fruit", kind, default, "Fruit to eat.", **rules)
    parse_flags(options, ["eat.py", *arguments])
    return options.fruit


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (str, "a,b", "a,b"),
        (int, "-3", -3),
        (float, "2", 2.0),
        (bool, "true", True),
        (list, "a, b", ["a", "b"]),
        (list, "", []),
    ],
)
def test_a_text_becomes_a_value_of_its_kind(kind, text, value):
    assert read(f"--fruit={text}", kind=kind) == value


@pytest.mark.parametrize(
    ("rules", "value"),
    [
        ({}, "/home/me/a,~/b"),
        ({"multiple": True}, ["/home/me/a,~/b"]),
        ({"kind": list}, ["/home/me/a", "/home/me/b"]),
    ],
)
def test_a_path_may_begin_with_the_home_folder(rules, value, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert read("--fruit=~/a,~/b", is_path=True, **rules) == value


def test_a_flag_that_may_be_given_again_holds_all_values():
    assert read("--fruit=a,b", "--fruit=c", multiple=True) == ["a,b", "c"]


@pytest.mark.parametrize("kind", [str, list])
def test_a_flag_given_again_is_refused(kind):
    with pytest.raises(flags.Error, match=r"flag --fruit=c: already defined as "):
        read("--fruit=a,b", "--fruit=c", kind=kind)


@pytest.mark.parametrize(
    ("kind", "text", "rules", "message"),
    [
        (int, "2.5", {}, "invalid literal for int() with base 10: '2.5'"),
        (int, "6", {"lower_bound": 7}, "6 is not an integer in the range [7, 2147483647]"),
        (int, "8", {"upper_bound": 7}, "8 is not an integer in the range [-2147483647, 7]"),
        (float, "nan", {}, "it must be finite"),
        (float, "-0.1", {"lower_bound": 0}, "-0.1 is not a non-negative number"),
        (bool, "maybe", {}, "('Non-boolean argument to boolean flag', 'maybe')"),
        (str, "plums", {"choices": ("pear", "plum")}, "value should be one of <pear|plum>"),
        (list, "pear,plums", {"choices": ("pear", "plum")}, "value should be one of <pear|plum>"),
        (list, "pear,", {"is_path": True}, NO_PATH),
        (str, " ", {"is_path": True}, NO_PATH),
    ],
)
def test_a_wrong_value_of_a_flag_is_answered_with_the_rule(kind, text, rules, message):
    with pytest.raises(flags.Error) as raised:
        read(f"--fruit={text}", kind=kind, **rules)
    assert str(raised.value) == f"flag --fruit={text}: {message}"


def test_every_choice_is_taken():
    assert read("--fruit=plum", choices=("pear", "plum")) == "plum"
    assert read("--fruit=plum,pear", kind=list, choices=("pear", "plum")) == ["plum", "pear"]


def test_a_default_is_taken_without_a_check():
    assert read(choices=("pear",)) is None
    assert read(kind=list, default=[], is_path=True) == []


def test_both_names_of_a_flag_set_one_value():
    options = flags.FlagValues()
    define_flag(options, "fruit", str, None, "Fruit to eat.", choices=("pear",))
    define_second_name(options, "food", "fruit")
    parse_flags(options, ["eat.py", "--food=pear"])
    assert (options.fruit, options.food, options["fruit"].present) == ("pear", "pear", 1)


@pytest.mark.parametrize("arguments", [["pear", "--ripe"], ["--ripe", "pear"], ["--", "pear"]])
def test_an_argument_without_a_flag_may_stand_anywhere(arguments):
    options = flags.FlagValues()
    define_flag(options, "fruit", str, None, "Fruit to eat.")
    define_flag(options, "ripe", bool, False, "Is it ripe?")
    parse_flags(options, ["eat.py", *arguments], positional="fruit")
    assert options.fruit == "pear"


def test_a_second_argument_without_a_flag_is_refused():
    options = flags.FlagValues()
    define_flag(options, "fruit", str, None, "Fruit to eat.")
    with pytest.raises(flags.Error, match="flag --fruit=plum: already defined as pear"):
        parse_flags(options, ["eat.py", "pear", "plum"], positional="fruit")


def test_a_path_that_tensorflow_cannot_encode_is_refused():
    with pytest.raises(flags.Error, match="surrogates not allowed"):
        read("--fruit=a\udcfc", is_path=True)
    assert read("--fruit=a\udcfc", is_path=True, multiple=True) == ["a\udcfc"]  # a text file


NAMES = ("learning_rate", "warmup_steps", "temperature", "top_k", "top_p", "mem_len", "n_layer")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("lr", " Did you mean --learning_rate?"),
        ("n-layers", " Did you mean --n_layer?"),
        ("memory", " Did you mean --mem_len?"),
        ("top-k", " Did you mean --top_k?"),
        ("hidden_size", ""),  # of no flag here
        ("x", ""),
    ],
)
def test_a_misspelt_name_or_that_of_another_package_has_a_suggestion(name, hint):
    options = flags.FlagValues()
    for known in NAMES:
        define_flag(options, known, str, None, "Text.")
    with pytest.raises(flags.Error) as raised:
        parse_flags(options, ["eat.py", f"--{name}=1"])
    assert str(raised.value) == f"unknown flag --{name}.{hint}"


def test_every_synonym_stands_for_a_flag():
    programs = (
        define_flags(),
        evaluate.define_flags(),
        generate.define_flags(),
        score.define_flags(),
    )
    known = {name for options in programs for name in options}
    assert {name for names in SYNONYMS.values() for name in names} <= known


def test_help_says_kind_choices_and_default_of_each_flag():
    options = flags.FlagValues()
    define_flag(options, "folder", str, None, "Where.", required=True, is_path=True)
    define_flag(options, "fruit", str, "pear", "Fruit.", choices=("pear", "plum"))
    define_second_name(options, "food", "fruit")
    define_flag(options, "n", int, None, "How many. [default: all]")
    define_flag(options, "ripe", bool, False, "Is it ripe?")
    define_flag(options, "note", str, [], "Note.", multiple=True)
    define_flag(options, "peel", bool, True, "Peel it.", section="Kitchen")
    define_flag(options, "knife", str, None, "Knife.", section="Kitchen", rare=True)
    *short, rest = format_help(options).splitlines()
    assert rest == "--helpfull lists 2 more flags."
    full = format_help(options, full=True).splitlines()
    assert full.pop(3) == "  --food=TEXT: Alias of --fruit. One of pear, plum. [default: pear]"
    assert full == [*short[:-1], "  --knife=TEXT: Knife."]
    assert short == [
        "Flags:",
        "  --folder=PATH: Where. [required]",
        "  --fruit=TEXT: Fruit. One of pear, plum. [default: pear]",
        "  --n=INTEGER: How many. [default: all]",
        "  --[no]ripe: Is it ripe? [default: false]",
        "  --note=TEXT: Note. May be given more than once.",
        "",
        "Kitchen:",
        "  --[no]peel: Peel it. [default: true]",
        "",
    ]


@pytest.mark.slow
def test_help_needs_no_docstrings():
    """Under -OO there are none; the help of configs' fields is in the fields."""
    done = subprocess.run(
        [sys.executable, "-OO", "train_gpu.py", "--helpfull"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    parts = [" ".join(part.split()) for part in done.stdout.split("\n  --")[1:]]
    heads = {part.partition(":")[0]: part.partition(": ")[2] for part in parts}
    helps = {head.removeprefix("[no]").partition("=")[0]: text for head, text in heads.items()}
    options = define_flags()
    missing = [name for name in options if not helps.get(name, "").startswith(options[name].help)]
    assert not missing
