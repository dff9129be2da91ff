"""Models with other position encodings, and with half of the loss, in every program."""

import json
import shutil

import numpy as np
import pytest
from small_commands import (
    N_TEST,
    N_VALID,
    read_weights,
    run_main,
    write_data,
    write_words,
)

import txl_tf
from txl_tf import attention, context, evaluate, export, export_release, generate
from txl_tf.config import AttentionSpan

pytestmark = pytest.mark.slow

FLAGS = {
    "shaw": ["--encoding=shaw", "--n_positions=12"],
    "shaw_biased": ["--encoding=shaw_biased", "--n_positions=12"],
    "sinusoid": ["--encoding=sinusoid", "--mem_len=0"],
    "learned": ["--encoding=learned", "--n_positions=5", "--mem_len=0"],
}
PLACES = pytest.mark.parametrize("name", ["sinusoid", "learned"])
NAMES = pytest.mark.parametrize("name", FLAGS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each encoding, trained on half of the loss, by name, and their records."""
    folder = tmp_path_factory.mktemp("ablations")
    write_data(folder / "data")
    for name, flags in FLAGS.items():
        half = ["--half_loss", "--eval_every=6", "--do_eval"]
        assert run_main(folder / "data", folder / name, *flags, *half) == 0
        write_words(folder / name / "records", valid=N_VALID, test=N_TEST)
    return folder


def call(program, *arguments):
    return program.main([program.__name__, *map(str, arguments)])


@NAMES
def test_a_run_is_evaluated_with_and_without_windows(runs, name, capsys):
    losses = []
    for arguments in ([], ["--stride=2"], ["--stride=1"]):
        assert call(evaluate, runs / name, "--json", "--jit=none", *arguments) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["tokens"] == N_TEST - 1
        losses.append(found["loss_nats"])
    assert len(set(losses)) == 3


def test_a_resumed_run_is_the_same(runs, tmp_path):
    name = "learned"
    folder, half = tmp_path / "resumed", ["--half_loss", "--eval_every=6", "--do_eval"]
    shutil.copytree(runs / name, folder)
    for path in (folder / "checkpoints").glob("*12*"):
        path.unlink()
    assert run_main(runs / "data", folder, *FLAGS[name], *half) == 0
    for one, other in zip(read_weights(runs / name), read_weights(folder), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["shaw", "learned"])
def test_a_text_is_scored_as_the_model_reads_it(runs, name):
    lm = txl_tf.load(runs / name)
    ids = np.arange(14, dtype=np.int32) * 7 % 11
    (found,) = lm.score([ids], jit="none")
    # The first 8 inputs see all before them if there is a memory; otherwise segments are windows.
    ends = [8] if lm.span.mem_len else [5, 10, 13]
    nats = []
    for start, end in zip([0, *ends], ends, strict=False):
        memory = lm.model.initial_memory(1, 0)
        hidden, _ = lm.model(ids[None, start:end], memory, span=AttentionSpan(0))
        nats.extend(lm.model.nll(hidden, ids[None, start + 1 : end + 1])[0].numpy())
    np.testing.assert_allclose(found.nats[: len(nats)], nats, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["shaw_biased", "learned"])
def test_contexts_and_attention_are_measured(runs, name, capsys):
    lengths = ["--first_context=2", "--delta=2", "--max_context=8"]
    arguments = [f"--run={runs / name}", *lengths, "--positions=9", "--share=1"]
    assert call(context, *arguments, "--eval_tokens=0") == 0
    assert "8" in capsys.readouterr().out
    assert call(attention, f"--run={runs / name}", "--tokens=20", "--length=5", "--jit=none") == 0


@pytest.mark.parametrize("name", ["shaw_biased"])
def test_a_model_with_memory_generates_and_is_exported(runs, name, tmp_path, capsys):
    arguments = ["--run", runs / name, "--prompt=w1 w2", "--length=9"]
    assert call(generate, *arguments) == 0
    assert capsys.readouterr().out.startswith("w1 w2")
    assert call(export, "--run", runs / name, f"--out={tmp_path / 'saved'}") == 0


@PLACES
def test_what_needs_a_memory_is_refused_in_a_line(runs, name, tmp_path, capsys):
    rule = f"needs a memory, which a model with encoding={name} cannot have"
    assert call(generate, "--run", runs / name, "--prompt=w1 w2") == 1
    assert f"generation {rule}" in capsys.readouterr().err
    assert call(export, "--run", runs / name, f"--out={tmp_path / 'saved'}") == 1
    assert f"a SavedModel {rule}" in capsys.readouterr().err
    assert not (tmp_path / "saved").exists()
    assert call(evaluate, runs / name, "--mem_len=3") == 1
    assert f"`mem_len` must be 0 with encoding={name}" in capsys.readouterr().err


@NAMES
def test_the_release_has_no_such_encoding(runs, name, tmp_path, capsys):
    assert call(export_release, "--run", runs / name, f"--out={tmp_path / 'release'}") == 1
    assert f"has only encoding=relative. Received: encoding={name}" in capsys.readouterr().err


REFUSED = {
    "no rows": (["--encoding=shaw"], "`n_positions` must be positive with this encoding"),
    "rows of no use": (["--n_positions=3"], "`n_positions` must be 0 with this encoding"),
    "too few rows": (
        ["--encoding=shaw", "--n_positions=11"],
        "`n_positions` must be at least mem_len + tgt_len = 12",
    ),
    "too few places": (
        ["--encoding=learned", "--n_positions=4", "--mem_len=0"],
        "`tgt_len` must be at most `n_positions` with encoding=learned",
    ),
    "a memory": (["--encoding=sinusoid"], "`mem_len` must be 0 with encoding=sinusoid"),
    "untied biases": (["--encoding=sinusoid", "--mem_len=0", "--untie_r"], "`untie_r` is for"),
    "no such encoding": (["--encoding=rotary"], "encoding"),
    "half of nothing": (["--half_loss", "--tgt_len=1"], "`tgt_len` must be at least 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_cannot_be_are_refused(runs, case, tmp_path, capsys):
    arguments, message = REFUSED[case]
    assert run_main(runs / "data", tmp_path / "run", *arguments) != 0
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) <= 2
