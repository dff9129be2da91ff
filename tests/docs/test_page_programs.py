"""The Python programs of pages, on a few kilobytes."""

import re

import numpy as np
import pytest
from places import ROOT

import txl_tf
from txl_tf.data import write_records


def list_programs(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def records(tmp_path, monkeypatch):
    """Makes records of bytes where the pages have theirs."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "keras.md").read_bytes()
    ids = np.frombuffer(text, np.uint8).astype(np.int32)
    write_records(
        "data/pydoc",
        dataset="pydoc",
        vocabulary=txl_tf.load("pydoc").vocabulary,
        splits={"train": [ids], "valid": [ids[:2000]]},
    )


@pytest.mark.slow
def test_the_programs_of_the_page_run_one_after_another(records, capsys):
    program = "\n".join(list_programs("docs/keras.md"))
    program = program.replace("epochs=5, steps_per_epoch=250", "epochs=1")
    exec(compile(program.replace("steps_per_epoch=50", "steps_per_epoch=2"), "page", "exec"), {})
    assert "val_perplexity" in capsys.readouterr().out


@pytest.mark.slow
def test_the_program_of_the_readme_runs(records, capsys):
    (program,) = (text for text in list_programs("README.md") if "CausalLM" in text)
    exec(compile(program.replace("data/shakespeare", "data/pydoc"), "README", "exec"), {})
    assert "perplexity" in capsys.readouterr().out


@pytest.mark.slow
def test_the_training_loop_of_the_api_trains_a_model_that_loads(records, capsys):
    (program,) = list_programs("docs/api/training.md")
    n_steps = "range(config.train_steps)"
    assert n_steps in program
    program = program.replace(n_steps, "range(51)")
    exec(compile(program, "page", "exec"), {})
    first, last = (float(line.split()[1]) for line in capsys.readouterr().out.splitlines())
    assert last < first - 1
    assert txl_tf.load("models/own").vocabulary.level == "byte"
