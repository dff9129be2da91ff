"""The programs on a run of a recurrent model: their results, and refusals in one line."""

import json
import re

import numpy as np
import pytest
from small_commands import read_log, read_scores, write_data, write_words
from tables import slow_after

from benchmarks.flag_texts import keep_last
from txl_tf.config import ModelConfig
from txl_tf.programs import (
    attention,
    context,
    evaluate,
    export,
    export_release,
    generate,
    page,
    samples,
    score,
)
from txl_tf.programs import train as train_gpu
from txl_tf.runs.folder import read_run_config

pytestmark = pytest.mark.slow

FLAGS = (
    *("--model_type=lstm", "--n_layer=2", "--d_model=8", "--d_embed=8", "--tgt_len=5"),
    *("--mem_len=0", "--train_batch_size=4", "--eval_batch_size=2", "--train_steps=12"),
    *("--save_steps=4", "--iterations=4", "--learning_rate=0.01", "--jit=none", "--eval_every=6"),
)
N_TEST = 149


def train(data_dir, model_dir, *more):
    places = [f"--data_dir={data_dir}", f"--model_dir={model_dir}"]
    return train_gpu.main(["train_gpu.py", *keep_last([*places, *FLAGS, *more])])


@pytest.fixture(scope="module")
def lstm(tmp_path_factory):
    """A run of an LSTM whose records, with a split test, lie in its folder."""
    folder = tmp_path_factory.mktemp("lstm")
    write_data(folder / "data")
    assert train(folder / "data", folder / "lstm", "--ema=0.9") == 0
    write_words(folder / "lstm" / "records", valid=101, test=N_TEST)
    (folder / "lstm" / "data.json").unlink()  # as in an imported run
    return folder / "lstm"


def test_a_run_is_trained_and_says_once_that_it_has_no_samples(tmp_path, capsys):
    data = write_data(tmp_path / "data")
    assert train(data, tmp_path / "run", "--model_type=qrnn") == 0
    out = capsys.readouterr().out
    assert out.count("No samples: generation needs a memory of keys and values.") == 1
    assert [step for step, _ in read_scores(out)] == [6, 12]
    assert read_log(tmp_path / "run")[-1]["step"] == 12
    assert read_run_config(str(tmp_path / "run")).model.model_type == "qrnn"


def test_a_dry_run_counts_parameters_and_memory(tmp_path, capsys):
    data = write_data(tmp_path / "data")
    assert train(data, tmp_path / "run", "--dry_run") == 0
    out = capsys.readouterr().out
    config = ModelConfig(n_token=11, n_layer=2, d_model=8, d_embed=8, model_type="lstm")
    assert f"parameters  {config.count_parameters():,}: " in out
    assert "by XLA's account" in out
    assert not (tmp_path / "run").exists()


def test_another_type_in_the_same_folder_is_the_only_difference(lstm, capsys):
    assert train(lstm.parent / "data", lstm, "--ema=0.9", "--model_type=transformer_xl") == 1
    err = capsys.readouterr().err
    assert "another config: model_type is 'lstm' there and 'transformer_xl' here" in err
    assert "n_head" not in err


@pytest.mark.parametrize("more", slow_after(1, ["", "--stride=2"]))
def test_a_run_is_evaluated(lstm, capsys, more):
    assert evaluate.main(["evaluate.py", f"--run={lstm}", "--json", *more.split()]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["split"] == "test"
    assert record["is_averaged"]
    assert record["warm_len"] == (20 if not more else 0)
    assert record["loss_nats"] == pytest.approx(np.log(11), rel=0.1)


def test_contexts_are_compared_with_those_of_a_transformer(lstm, run, tmp_path, capsys):
    arguments = (
        *(f"--run={run}", f"--run={lstm}", f"--out={tmp_path}", "--first_context=2", "--delta=3"),
        *("--max_context=11", "--positions=40", "--eval_tokens=60", "--attention_lengths=0,9"),
    )
    assert context.main(["context.py", *arguments]) == 0
    out = capsys.readouterr().out
    assert out.count("No attention lengths of lstm: a recurrent model has no attention") == 1
    found = json.loads((tmp_path / "context.json").read_text())
    assert list(found["losses"]) == ["run", "lstm"]
    assert list(found["attention_lengths"]) == ["run"]
    assert list(found["recl"][0]["runs"]) == ["run", "lstm"]


@pytest.mark.parametrize(
    ("program", "arguments", "task"),
    [
        (generate, ["--prompt=w1 w2"], "generation"),
        (samples, ["--split=test", "--context_len=5", "--length=5"], "generation"),
        (attention, ["--out={out}"], "an analysis of attention"),
        (page, ["--split=test", "--out={out}"], "an analysis of attention"),
        (export, ["--out={out}"], "an export"),
        (export_release, ["--out={out}"], "the 2019 release"),
        (score, ["--precision=int8"], "quantization"),
    ],
    ids=["generate", "samples", "attention", "page", "export", "export_release", "precision"],
)
def test_a_program_that_needs_a_transformer_refuses(
    lstm, tmp_path, capsys, program, arguments, task
):
    out = tmp_path / "out"
    given = [argument.format(out=out) for argument in arguments]
    assert program.main(["program.py", f"--run={lstm}", *given]) == 1
    captured = capsys.readouterr()
    message = rf"{task} needs model_type=transformer_xl: .*\. Received: model_type=lstm$"
    assert re.search(message, captured.err.strip().splitlines()[-1]), captured.err
    assert not captured.out
    assert not out.exists()
