"""Ordinary text as the words of WikiText."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_language_model import make_model

from txl_tf.data import Vocabulary
from txl_tf.data.text.wikitext import (
    tokenize_wikitext,
)
from txl_tf.programs import generate, score

pytest.importorskip("sacremoses", reason="pip install -e '.[wikitext]'")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It cost 5,000 dollars, or 3.5 %.", "It cost 5 @,@ 000 dollars , or 3 @.@ 5 % ."),
        ("a guest-starring role (2000-01)", "a guest @-@ starring role ( 2000 @-@ 01 )"),
        ('"Craig" in "Teddy\'s Story"', '" Craig " in " Teddy \'s Story "'),
        ("She didn't; he won't.", "She didn 't ; he won 't ."),
        ("== Plot ==", "= = Plot = ="),
        ("'Yes,' he said to the dogs'", "' Yes , ' he said to the dogs '"),
        ("\ua66e or <formula>, a <unk>-<unk>", "\ua66e or <formula> , a <unk> @-@ <unk>"),
        ("one line\n\nanother, longer", "one line\n\nanother , longer"),
    ],
)
def test_words_are_those_of_wikitext(text, words):
    assert tokenize_wikitext(text) == words


@pytest.mark.parametrize(
    "line",
    [
        'In 2004 <unk> cost 5 @,@ 000 , a two @-@ part " <unk> " ( 3 @.@ 5 ) , <unk> \'s .',
        "= = Plot = =",
        "5 'so",
        "<unk> " * 1009 + "'s",  # Moses keeps no more than 1,000 tokens itself
    ],
)
def test_tokenized_lines_are_not_changed(line):
    assert tokenize_wikitext(line) == line


FUZZ = settings(max_examples=101, deadline=None, derandomize=True)
PIECES = "a A é 5 ½ ' 's 't O'B n't . , - = == \" ( ` & @-@ @,@ <unk> <eos> Mr. No. ... \ua66e"
SPACES = [" ", " ", " ", "\t"]
LINES = st.lists(st.sampled_from([*PIECES.split(), *SPACES]), max_size=23).map("".join) | st.text(
    max_size=23
)


@FUZZ
@given(text=st.lists(LINES, max_size=3).map("\n".join))
def test_tokenizing_again_changes_nothing(text):
    words = tokenize_wikitext(text)
    assert tokenize_wikitext(words) == words


@FUZZ
@given(line=LINES.filter(lambda line: "\n" not in line))
def test_the_end_of_a_line_is_tokenized_as_its_middle(line):
    assert tokenize_wikitext(f"{line} Then").split() == [*tokenize_wikitext(line).split(), "Then"]


@FUZZ
@given(line=LINES)
def test_tokenizing_changes_only_spaces_and_escapes(line):
    plain, words = (
        re.sub(r"[\s\0-\x1f]", "", re.sub("@([-,.])@", r"\1", text))
        for text in (line, tokenize_wikitext(line))
    )
    assert words == plain


WORDS = Vocabulary(
    "word",
    ("<eos>", "<unk>", "@-@", "@,@", "part", "two", ",", "a"),
    line_end="<eos>",
    unknown="<unk>",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    make_model(8, vocabulary=WORDS).save(folder)
    return folder


def score_file(run, path, *flags, capsys):
    arguments = ["score.py", f"--run={run}", "--format=jsonl", *flags, str(path)]
    assert score.main(arguments) == 0
    return json.loads(capsys.readouterr().out.splitlines()[0])


def test_a_score_of_plain_text_is_that_of_the_tokenized_one(run, tmp_path, capsys):
    (tmp_path / "plain.txt").write_text("a two-part, two-part\n")
    (tmp_path / "words.txt").write_text("a two @-@ part , two @-@ part\n")
    words = score_file(run, tmp_path / "words.txt", capsys=capsys)
    plain = score_file(run, tmp_path / "plain.txt", "--tokenize_wikitext", capsys=capsys)
    assert plain | {"source": ""} == words | {"source": ""}
    assert plain["unknown_tokens"] == 0
    untouched = score_file(run, tmp_path / "plain.txt", capsys=capsys)
    assert untouched["unknown_tokens"] == 2  # "two-part," and "two-part"


def test_a_prompt_is_tokenized(run, capsys):
    flags = [f"--run={run}", "--prompt=a two-part, two", "--length=3", "--raw"]
    assert generate.main(["generate.py", *flags, "--tokenize_wikitext"]) == 0
    assert capsys.readouterr().out.startswith("a two @-@ part , two")


def test_another_vocabulary_is_refused(tmp_path, capsys):
    make_model(3, vocabulary=Vocabulary("char", ("a", "b", " "))).save(tmp_path / "run")
    (tmp_path / "a.txt").write_text("ab")
    arguments = [f"--run={tmp_path / 'run'}", "--tokenize_wikitext", str(tmp_path / "a.txt")]
    assert score.main(["score.py", *arguments]) == 1
    assert "is for the vocabulary of WikiText" in capsys.readouterr().err
