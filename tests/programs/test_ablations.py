"""Models with other position encodings, and with half of the loss, in every program."""

import json

import numpy as np
import pytest
from small_commands import (
    N_TEST,
    N_VALID,
    run_main,
    write_data,
    write_words,
)

import txl_tf
from txl_tf.config import AttentionSpan
from txl_tf.programs import attention, context, evaluate, export, export_release, generate

FLAGS = {
    "shaw_biased": ["--encoding=shaw_biased", "--n_positions=12"],
    "learned": ["--encoding=learned", "--n_positions=5", "--mem_len=0"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each encoding, trained on half of the loss, by name, and their records."""
    folder = tmp_path_factory.mktemp("ablations")
    write_data(folder / "data")
    for name, flags in FLAGS.items():
        half = ["--half_loss", "--eval_every=6", "--do_eval"]
        assert run_main(folder / "data", folder / name, *flags, *half) == 0
        write_words(folder / name / "records", valid=N_VALID, test=N_TEST)
        (folder / name / "data.json").unlink()  # as in an imported run
    return folder


def call(program, *arguments):
    return program.main([program.__name__, *map(str, arguments)])


@pytest.mark.slow
@pytest.mark.parametrize("name", FLAGS)
def test_a_run_is_evaluated_with_and_without_windows(runs, name, capsys):
    losses = []
    for arguments in ([], ["--stride=2"]):
        assert call(evaluate, runs / name, "--json", "--jit=none", *arguments) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["tokens"] == N_TEST - 1
        losses.append(found["loss_nats"])
    assert len(set(losses)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", FLAGS)
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


@pytest.mark.slow
def test_contexts_and_attention_are_measured(runs, capsys):
    lengths = ["--first_context=2", "--delta=2", "--max_context=8"]
    arguments = [f"--run={runs / 'learned'}", *lengths, "--positions=9", "--share=1"]
    assert call(context, *arguments, "--eval_tokens=0") == 0
    assert "8" in capsys.readouterr().out
    stretch = ["--tokens=20", "--length=5", "--jit=none"]
    assert call(attention, runs / "learned", *stretch) == 0


@pytest.mark.slow
def test_a_model_with_memory_generates_and_is_exported(runs, tmp_path, capsys):
    arguments = ["--run", runs / "shaw_biased", "--prompt=w1 w2", "--length=9"]
    assert call(generate, *arguments) == 0
    assert capsys.readouterr().out.startswith("w1 w2")
    assert call(export, "--run", runs / "shaw_biased", f"--out={tmp_path / 'saved'}") == 0


@pytest.mark.slow
def test_generation_export_and_a_memory_are_refused_without_memory(runs, tmp_path, capsys):
    rule = "needs a memory, which a model with encoding=learned cannot have"
    assert call(generate, "--run", runs / "learned", "--prompt=w1 w2") == 1
    assert f"generation {rule}" in capsys.readouterr().err
    assert call(export, "--run", runs / "learned", f"--out={tmp_path / 'saved'}") == 1
    assert f"a SavedModel {rule}" in capsys.readouterr().err
    assert not (tmp_path / "saved").exists()
    assert call(evaluate, runs / "learned", "--mem_len=3") == 1
    assert "`mem_len` must be 0 with encoding=learned" in capsys.readouterr().err


@pytest.mark.slow
def test_the_release_has_no_such_encoding(runs, tmp_path, capsys):
    assert call(export_release, "--run", runs / "shaw_biased", f"--out={tmp_path / 'release'}") == 1
    assert "has only encoding=relative. Received: encoding=shaw_biased" in capsys.readouterr().err
