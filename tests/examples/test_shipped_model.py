"""The model that comes with the repository: it can be tried at once."""

import pytest
from places import ROOT

import txl_tf
from txl_tf import generate

FOLDER = ROOT / "examples" / "models" / "pydoc"
TEXT = "Return a list of the names of the files in the directory given by path.\n"


@pytest.fixture(scope="module")
def lm():
    return txl_tf.load(FOLDER)


def test_it_knows_the_language_of_its_corpus(lm):
    (score,) = lm.score([TEXT])
    assert score.bits_per_token < 2.2
    (scrambled,) = lm.score([TEXT[::-1]])
    assert scrambled.bits_per_token > 3


def test_it_writes_words(lm):
    text = lm.generate("Return the ", max_new_tokens=200, temperature=0.0)
    assert {"the", "of"} & set(text.split())


def test_the_program_continues_a_prompt_with_it(capsys):
    assert generate.main(["generate", str(FOLDER), "--prompt=Return the ", "--length=20"]) == 0
    assert capsys.readouterr().out.startswith("Return the ")


def test_it_is_small_and_its_license_lies_beside_it():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 8e6
    assert "PYTHON SOFTWARE FOUNDATION LICENSE" in (FOLDER / "LICENSE-PYTHON.txt").read_text()
