"""`python -m txl_tf.evaluate --dynamic` and its search."""

import json

import pytest
from small_commands import N_TEST, N_VALID, read_weights, run_main, write_data, write_words

from txl_tf import evaluate
from txl_tf.config.dynamic import DYNAMIC_RECIPES

STEPS = ("--dynamic", "--dynamic_n_batches=7", "--jit=none")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dynamic")
    write_data(folder / "data")
    assert run_main(folder / "data", folder / "run") == 0
    write_words(folder / "run" / "records", train=307, valid=N_VALID, test=N_TEST)
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


def test_a_learning_rate_of_0_is_the_static_evaluation(run, capsys):
    static = call_json(capsys, run, "--lanes=1", "--jit=none")
    assert call(run, *STEPS, "--dynamic_learning_rate=0", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["loss_nats"] == static["loss_nats"]
    assert "With a learning rate of 0 the evaluation is static." in err


def test_the_table_names_rule_and_lanes(run, capsys):
    assert call(run, *STEPS, "--dynamic_rule=sgd", "--dynamic_n_batches=200") == 0
    out = capsys.readouterr().out
    assert "dynamic     rule sgd, learning_rate 0.1, decay 0.003\n" in out
    assert "lanes       1\n" in out


def test_a_search_is_kept_for_the_next_evaluation(run, capsys):
    assert call(run, *STEPS, "--tune", "--max_segments=5", "--dynamic_learning_rate=1e-3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("static") for line in lines)
    assert lines[-2].startswith("Best: rule rms, learning_rate ")
    kept = json.loads((run / "dynamic" / "tuned.json").read_text())
    assert kept["split"] == "valid"
    assert kept["dynamic_nats"] <= kept["static_nats"]
    found = call_json(capsys, run, "--dynamic", "--jit=none")
    assert found["dynamic"] == kept["dynamic"]
    other = call_json(capsys, run, "--dynamic", "--dynamic_rule=sgd", "--jit=none")
    assert other["dynamic"]["rule"] == "sgd"


def test_a_recipe_has_its_own_span(run, capsys):
    recipe = DYNAMIC_RECIPES["wt103"]
    flags = ("--dynamic_recipe=wt103", "--dynamic_n_batches=2", "--jit=none")
    found = call_json(capsys, run, "--dynamic", *flags, "--mem_len=11")
    assert found["evaluation"]["clamp_len"] == recipe.evaluation.clamp_len
    assert found["evaluation"]["mem_len"] == 11
    assert found["dynamic"] == recipe.dynamic.to_json() | {"n_batches": 2}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tune"], "--tune needs --dynamic"),
        (["--dynamic_decay=0.1"], "--dynamic_decay needs --dynamic"),
        (["--dynamic", "--stride=2"], "--stride cannot be used with --dynamic"),
        (["--dynamic", "--tune", "--json"], "--json cannot be used with --tune"),
        (["--dynamic", "--tune", "--dynamic_learning_rate=0"], "must be positive with --tune"),
        (["--dynamic", "--dynamic_learning_rate=-1"], "`learning_rate` must not be negative"),
        (["--dynamic", "--dynamic_recipe=wt103", "--preset=wt103_base"], "--preset cannot be used"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(run, flags, message, capsys):
    assert call(run, *flags) != 0
    assert message in capsys.readouterr().err


def test_a_run_without_a_training_split_needs_another_rule(run, tmp_path, capsys):
    write_words(tmp_path / "data", test=N_TEST)
    places = (run, "--dynamic", f"--data_dir={tmp_path / 'data'}", "--jit=none")
    assert call(*places) == 1
    assert "needs the gradients of the training split" in capsys.readouterr().err
    assert call(*places, "--dynamic_rule=sgd") == 0
