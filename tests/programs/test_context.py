"""The program that measures how far models look, on tiny runs."""

import json
import os
import re
import shutil

import numpy as np
import pytest
from small_commands import run_main

import txl_tf
from txl_tf.lab import context_losses
from txl_tf.programs import context

pytestmark = pytest.mark.slow

CONTEXTS = ["--first_context=2", "--delta=3", "--max_context=11", "--positions=40"]


def call(*arguments):
    return context.main(["context.py", *map(str, arguments)])


@pytest.fixture(scope="module")
def other(run, tmp_path_factory):
    """Another run on the same records."""
    folder = tmp_path_factory.mktemp("context") / "other"
    assert run_main(run.parent / "data", folder, "--seed=4", "--mem_len=3") == 0
    return folder


def test_a_group_of_runs_is_measured_drawn_and_stored(run, other, tmp_path, capsys):
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


def test_a_memory_of_no_length_may_be_measured(run, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    config = json.loads((copy / "config.json").read_text())
    config["evaluation"]["same_length"] = True
    (copy / "config.json").write_text(json.dumps(config))
    lengths = ["--attention_lengths=0,3", "--eval_tokens=60", "--threads=1"]
    assert call(f"--run={copy}", *CONTEXTS, f"--data_dir={run.parent / 'data'}", *lengths) == 0
    found = json.loads((copy / "context" / "context.json").read_text())
    assert found["attention_lengths"]["run"]["lengths"][0] == 0
    config["training"] |= {"mem_len": 0, "same_length": False}
    config["evaluation"] |= {"mem_len": 0, "same_length": False}
    (copy / "config.json").write_text(json.dumps(config))
    assert call(f"--run={copy}", *CONTEXTS, f"--data_dir={run.parent / 'data'}", *lengths) == 2
    assert "--attention_lengths must be positive for runs that" in capsys.readouterr().err


def test_the_loss_is_that_of_the_model_after_each_context(run, tmp_path, capsys):
    assert call(f"--run={run}", *CONTEXTS, f"--out={tmp_path}", "--eval_tokens=0", "--json") == 0
    found = json.loads((tmp_path / "context.json").read_text())
    assert json.loads(capsys.readouterr().out) == found
    lm = txl_tf.load(run)
    ids = txl_tf.data.read_ids(str(run / "records"), "valid")
    positions = context_losses.draw_positions(len(ids), 11, 40, seed=0)
    for length, mean in zip(found["contexts"], found["losses"]["run"]["mean"], strict=True):
        scores = lm.score([ids[at - length : at + 1] for at in positions], jit="none")
        assert mean == pytest.approx(np.exp(np.mean([s.nats[-1] for s in scores])), rel=1e-5)


def test_a_run_whose_path_is_not_utf_8_is_refused_in_one_line(run, tmp_path, capsys):
    link = tmp_path / os.fsdecode(b"caf\xe9")
    link.symlink_to(run)
    assert call(f"--run={link}", *CONTEXTS, f"--out={tmp_path}/out") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"context\.py: --run: .*surrogates not allowed.*", line)


def test_contexts_are_kept_if_the_rest_fails(run, tmp_path, capsys):
    lengths = "--attention_lengths=3,3000000000"
    assert call(f"--run={run}", *CONTEXTS, f"--out={tmp_path}", "--eval_tokens=60", lengths) == 1
    assert "`mem_len` must be an integer <= 2147483647" in capsys.readouterr().err
    found = json.loads((tmp_path / "context.json").read_text())
    assert found["threshold"] == 0.01
    assert found["contexts"] == [2, 5, 8, 11]
