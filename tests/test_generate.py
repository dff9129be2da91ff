import io
import os
import re

import pytest
from small_release import make_release

import txl_tf
from txl_tf import generate, import_release


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of characters with random weights."""
    folder = tmp_path_factory.mktemp("generating")
    make_release(folder / "source", dataset="text8")
    spans = ["--eval_tgt_len=5", "--eval_mem_len=11"]
    argv = [f"--source={folder}/source", f"--out={folder}/run", *spans]
    assert import_release.main(["import_release", *argv]) == 0
    return folder / "run"


def call(*arguments):
    return generate.main(["generate", *map(str, arguments)])


def test_the_text_is_printed_after_its_prompt(run, capsys):
    arguments = ["--prompt=so it", "--length=37", "--temperature=2", "--top_k=0", "--seed=3"]
    assert call(run, *arguments) == 0
    text = txl_tf.load(run).generate("so it", max_new_tokens=37, temperature=2.0, seed=3)
    assert capsys.readouterr().out == f"so it{text}\n"


def test_several_samples_have_seeds_of_their_own(run, capsys):
    assert call(run, "--prompt=a", "--length=9", "--samples=2", "--seed=4", "--temperature=3") == 0
    first, second = re.findall(r"--- seed \d\n(.*)\n", capsys.readouterr().out)
    assert first != second


def test_the_prompt_may_come_by_standard_input(run, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("so it"))
    assert call(run, "--length=0") == 0
    assert capsys.readouterr().out == "so it\n"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--prompt="], 1, r"`prompt` must hold at least one token"),
        (["--prompt=so it!"], 1, r"1 unknown \('!'\), the first at offset 5"),
        (["--prompt=a", "--top_p=0"], 2, r"--top_p must be in \(0, 1\]"),
        (["--prompt=a", "--temperature=-1"], 2, r"temperature"),
        (["--prompt=a", "--repetition_penalty=0.5"], 2, r"--repetition_penalty must be 1 or more"),
        (["--prompt=a", f"--seed={2**63}"], 2, r"flag --seed=9223372036854775808: "),
        (
            ["--prompt=a", f"--seed={2**63 - 2}", "--samples=3"],
            2,
            r"--seed \+ --samples - 1, must be an integer <= 9223372036854775807\. Received: .*=3$",
        ),
        (["--prompt=a", "--length=99999999999999999999"], 2, r"--length must be an integer <= "),
        (["--prompt=a", "--stop=ab"], 1, r"'ab' is no symbol of the vocabulary"),
    ],
)
def test_bad_arguments_are_one_line(arguments, status, message, run, capsys):
    assert call(run, *arguments) == status
    out, error = capsys.readouterr()
    assert re.search(message, error)
    assert (out, error.count("\n")) == ("", 1)


def test_a_prompt_that_is_not_utf_8_is_one_line(run, capsys, monkeypatch):
    line = "generate: the prompt is not UTF-8: byte 0xff at offset 3\n"
    assert call(run, "--prompt", os.fsdecode("é ".encode() + b"\xff")) == 1
    assert capsys.readouterr() == ("", line)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("é ".encode() + b"\xff")))
    assert call(run) == 1
    assert capsys.readouterr() == ("", line)


def test_no_run_is_one_line(tmp_path, capsys):
    assert call(tmp_path, "--prompt=a") == 1
    assert "holds no run" in capsys.readouterr().err
