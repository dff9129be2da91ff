"""The program that measures how far models look, on tiny runs."""

import json
import re

import numpy as np
import pytest
from flag_lists import keep_last
from small_commands import run_main

import txl_tf
from txl_tf import context
from txl_tf.analysis import context_losses
from txl_tf.config import EvalConfig
from txl_tf.data import Vocabulary

CONTEXTS = ["--first_context=2", "--delta=3", "--max_context=11", "--positions=40"]


def call(*arguments):
    return context.main(["context.py", *map(str, arguments)])


@pytest.fixture(scope="module")
def other(run, tmp_path_factory):
    """Another run on the same records."""
    folder = tmp_path_factory.mktemp("context") / "other"
    assert run_main(run.parent / "data", folder, "--seed=4", "--mem_len=3") == 0
    return folder


def test_a_group_of_runs_is_measured_drawn_and_stored(run, other, tmp_path, capsys, monkeypatch):
    arguments = [f"--run={run}", f"--run={other}", *CONTEXTS, f"--out={tmp_path}"]
    assert call(*arguments, "--eval_tokens=60", "--attention_lengths=9", "--share=0.5,1") == 0
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "context.json").read_text())
    assert found["contexts"] == [2, 5, 8, 11]
    assert found["targets"] == 40
    assert list(found["losses"]) == ["run", "other"]
    for figure in ("context.png", "gains.png", "attention_lengths.png"):
        assert (tmp_path / figure).read_bytes().startswith(b"\x89PNG")
    assert [group["share"] for group in found["recl"]] == [0.5, 1]
    for label in ("ECL", "RECL, r = 0.5", "RECL, r = 1", "Attn Len", "standard error"):
        assert label in out
    lengths = found["attention_lengths"]["other"]
    assert lengths["initial"] == 3
    assert lengths["best"] in lengths["lengths"]

    def fail(*_, **__):
        raise AssertionError("the losses are kept")

    monkeypatch.setattr(context_losses.ContextReader, "read", fail)
    assert call(*arguments, "--eval_tokens=0", "--share=.3") == 0
    again = json.loads((tmp_path / "context.json").read_text())
    assert again["losses"] == found["losses"]
    assert "RECL, r = 0.3" in capsys.readouterr().out


def test_the_loss_is_that_of_the_model_after_each_context(run, tmp_path):
    assert call(f"--run={run}", *CONTEXTS, f"--out={tmp_path}", "--eval_tokens=0") == 0
    found = json.loads((tmp_path / "context.json").read_text())
    lm = txl_tf.load(run)
    ids = txl_tf.data.read_ids(str(run / "records"), "valid")
    positions = context_losses.draw_positions(len(ids), 11, 40, seed=0)
    for length, mean in zip(found["contexts"], found["losses"]["run"]["mean"], strict=True):
        scores = lm.score([ids[at - length : at + 1] for at in positions], jit="none")
        assert mean == pytest.approx(np.exp(np.mean([s.nats[-1] for s in scores])), rel=1e-5)


def make_run_of_another_vocabulary(run, folder):
    config = txl_tf.load(run).config
    model = txl_tf.TransformerXL(config, seed=0)
    vocabulary = Vocabulary("word", tuple(f"v{index}" for index in range(config.n_token)))
    txl_tf.LanguageModel(model, vocabulary, EvalConfig(mem_len=3)).save(folder)
    return folder


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--max_context=150"], 1, r"longer than the longest context, 149. Received: 101 tokens"),
        (["--split=none"], 1, r"none"),
        (["--max_context=4"], 2, r"--max_context must be at least --first_context \+ --delta"),
        (["--share=2"], 2, r"--share must be numbers in range. Received: 2"),
        (["--share=a"], 2, r"--share must be numbers in range. Received: a"),
        (["--attention_lengths=-1"], 2, r"--attention_lengths must be numbers in range"),
        (["--run={run}"], 1, r"each `run` may be given once"),
        (["--run={tmp}/none"], 1, r"`.*/none` holds no run"),
        (["--run={other}"], 1, r"`.*/strange` has another vocabulary than `.*run`: their losses"),
        (["--out={run}/config.json"], 1, r"config.json` cannot be created: File exists"),
    ],
)
def test_bad_input_is_one_line(run, tmp_path, capsys, arguments, status, message):
    strange = make_run_of_another_vocabulary(run, tmp_path / "strange")
    places = {"run": run, "tmp": tmp_path, "other": strange}
    before = {path.name for path in run.iterdir()}
    more = [argument.format(**places) for argument in arguments]
    common = keep_last([*CONTEXTS, f"--out={tmp_path / 'out'}", *more])
    assert call(f"--run={run}", *common) == status
    lines = capsys.readouterr().err.strip().splitlines()
    assert re.search(message, lines[-1]), lines
    assert {path.name for path in run.iterdir()} <= before | {"context_losses"}
