"""`txl evaluate --dynamic`."""

import json

import numpy as np
import pytest
from small_commands import (
    N_TEST,
    N_TOKEN,
    N_VALID,
    read_weights,
    run_main,
    write_data,
    write_words,
)

from benchmarks.flag_texts import keep_last
from txl_tf.data import Vocabulary, write_records
from txl_tf.programs import evaluate

pytestmark = pytest.mark.slow

STEPS = ("--dynamic", "--dynamic_n_batches=7", "--jit=none")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dynamic")
    write_data(folder / "data")
    assert run_main(folder / "data", folder / "run") == 0
    (folder / "run" / "data.json").unlink()  # as in an imported run
    rng = np.random.default_rng(7)
    write_records(
        folder / "run" / "records",
        dataset="words",
        vocabulary=Vocabulary("word", tuple(f"w{index}" for index in range(N_TOKEN))),
        splits={
            "train": [rng.integers(0, N_TOKEN, 307)],
            "valid": [np.resize(rng.integers(0, N_TOKEN, 7), N_VALID)],  # there is much to learn
            "test": [rng.integers(0, N_TOKEN, N_TEST)],
        },
    )
    return folder / "run"


def call(*arguments):
    return evaluate.main(["evaluate", *map(str, arguments)])


def call_json(capsys, *arguments):
    assert call(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_a_split_is_scored_and_the_run_is_not_changed(run, capsys):
    before = [weight.tobytes() for weight in read_weights(run)]
    static = call_json(capsys, run, "--lanes=1", "--jit=none")
    dynamic = call_json(capsys, run, *STEPS, "--dynamic_learning_rate=1e-3")
    assert static["dynamic"] is None
    assert dynamic["dynamic"]["learning_rate"] == 1e-3
    assert dynamic["lanes"] == 1
    assert dynamic["tokens"] == N_TEST - 1
    assert dynamic["loss_nats"] != static["loss_nats"]
    assert [weight.tobytes() for weight in read_weights(run)] == before
    again = call_json(capsys, run, *STEPS, "--dynamic_learning_rate=1e-3", "--lanes=3")
    assert again["lanes"] == 3
    assert again["loss_nats"] != dynamic["loss_nats"]


def test_the_table_names_rule_and_lanes(run, capsys):
    assert call(run, *keep_last([*STEPS, "--dynamic_rule=sgd", "--dynamic_n_batches=200"])) == 0
    out = capsys.readouterr().out
    assert "dynamic     rule sgd, learning_rate 0.1, decay 0.003\n" in out
    assert "lanes       1\n" in out


def test_a_run_without_a_training_split_needs_another_rule(run, tmp_path, capsys):
    write_words(tmp_path / "data", test=N_TEST)
    places = (run, "--dynamic", f"--data_dir={tmp_path / 'data'}", "--jit=none")
    assert call(*places) == 1
    assert "needs the gradients of the training split" in capsys.readouterr().err
    assert call(*places, "--dynamic_rule=sgd") == 0
