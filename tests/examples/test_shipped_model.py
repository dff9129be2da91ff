"""The model that comes with the package: it can be tried at once."""

from pathlib import Path

import pytest

import txl_tf
from txl_tf.data import write_records
from txl_tf.pretrained import find_pretrained
from txl_tf.programs import evaluate, generate

FOLDER = Path(find_pretrained("pydoc"))
TEXT = "Return a list of the names of the files in the directory given by path.\n"


@pytest.fixture(scope="module")
def lm():
    return txl_tf.load("pydoc")


def test_a_text_of_its_corpus_has_fewer_bits_than_its_reverse(lm):
    (score,) = lm.score([TEXT])
    assert score.bits_per_token < 2.2
    (scrambled,) = lm.score([TEXT[::-1]])
    assert scrambled.bits_per_token > 3


def test_generated_text_has_frequent_words(lm):
    text = lm.generate("Return the ", max_new_tokens=200, temperature=0.0)
    assert {"the", "of"} & set(text.split())


def test_the_program_continues_a_prompt_with_it(capsys):
    assert generate.main(["generate", str(FOLDER), "--prompt=Return the ", "--length=20"]) == 0
    assert capsys.readouterr().out.startswith("Return the ")


def test_its_evaluations_are_not_recorded(lm, tmp_path, capsys):
    before = sorted(FOLDER.iterdir())
    data_dir, ids = tmp_path / "data", lm.vocabulary.encode(TEXT)
    splits = {"valid": [ids]}
    write_records(data_dir, dataset="text", vocabulary=lm.vocabulary, splits=splits)
    arguments = [f"--data_dir={data_dir}", "--lanes=1", "--jit=none"]
    assert evaluate.main(["evaluate", "--run=pydoc", *arguments]) == 0
    out = capsys.readouterr().out
    assert "The score is not recorded: nothing is written into the package." in out
    assert f"tokens      {len(ids) - 1}\n" in out
    assert sorted(FOLDER.iterdir()) == before


def test_a_folder_of_the_user_comes_before_a_model_of_the_same_name(tmp_path, monkeypatch):
    (tmp_path / "pydoc").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(txl_tf.UserError, match="`pydoc` holds no run"):
        txl_tf.load("pydoc")


def test_the_folder_is_small_and_has_a_license():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 8e6
    assert "PYTHON SOFTWARE FOUNDATION LICENSE" in (FOLDER / "LICENSE-PYTHON.txt").read_text()
