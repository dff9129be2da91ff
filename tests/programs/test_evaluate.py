"""The evaluation program from its command line to what it prints, on tiny runs."""

import dataclasses
import json
import math
import shutil

import numpy as np
import pytest
from small_commands import N_TEST, run_main, write_data, write_words

import txl_tf
from txl_tf import presets
from txl_tf.data import Vocabulary, open_records, write_records
from txl_tf.errors import UserError
from txl_tf.presets import Preset
from txl_tf.programs import evaluate
from txl_tf.runs.checkpoint import load_weights
from txl_tf.runs.folder import VOCABULARY_NAME, read_run_config, remember_data
from txl_tf.scoring.evaluator import Evaluator

SPAN = {"tgt_len": 3, "mem_len": 13, "same_length": True, "clamp_len": 9}


@pytest.fixture
def preset(run, monkeypatch):
    """A preset of the run's model, for another vocabulary and with a figure."""
    config = read_run_config(str(run))
    model = dataclasses.replace(config.model, n_token=97, cutoffs=(5,), dropout=0.3)
    evaluation = txl_tf.EvalConfig(eval_batch_size=4, **SPAN)
    preset = Preset(model, config.training, evaluation, "7.5 perplexity")
    monkeypatch.setitem(presets.PRESETS, "words_tiny", preset)
    return "words_tiny"


def call(*arguments):
    return evaluate.main(["evaluate.py", *map(str, arguments), "--jit=none"])


def evaluate_as_json(capsys, *arguments):
    capsys.readouterr()
    assert call(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def read_rows(out):
    """Returns the rows of the table, which comes last."""
    lines = out.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("data "))
    return dict(line.split(maxsplit=1) for line in lines[start:])


def score(run, config, split="test", **counting):
    model = txl_tf.TransformerXL(read_run_config(str(run)).model)
    load_weights(model, str(run / "checkpoints" / "ckpt-12"))
    evaluator = Evaluator(model, config)
    tokens = open_records(run / "records").split(split)
    return evaluator.score_lanes(evaluator.cut_lanes(tokens, **{"warm_len": 0, **counting}))


@pytest.mark.slow
def test_precision_scores_the_quantized_model(run, capsys):
    records = [
        evaluate_as_json(capsys, "--run", run, "--precision", p) for p in ("float32", "int8")
    ]
    lm = txl_tf.load(run, precision="int8")
    assert records[1]["loss_nats"] == pytest.approx(lm.evaluate("test").nats_per_token, rel=1e-5)
    assert records[0]["loss_nats"] != records[1]["loss_nats"]
    assert [record["precision"] for record in records] == ["float32", "int8"]


def test_the_object_holds_what_the_table_says(run, preset, capsys):
    record = evaluate_as_json(capsys, run, "--preset=sota")
    nats = score(run, presets.get(preset).evaluation, warm_len=99).nats_per_token  # one layer
    assert record.pop("seconds") > 0
    assert record.pop("tokens_per_second") > 0
    assert record == {
        "run": str(run),
        "dataset": "words",
        "recipe": preset,
        "published": "7.5 perplexity",
        "published_split": "test",
        "split": "test",
        "checkpoint": str(run / "checkpoints" / "ckpt-12"),
        "step": 12,
        "is_averaged": False,
        "precision": "float32",
        "is_whole": True,
        "is_own": True,
        "evaluation": {
            **SPAN,
            "eval_batch_size": 4,
            "reset_at_documents": False,
            "counts_self": False,
            "temperature": 1.0,
        },
        "lanes": 4,
        "warm_len": 54,
        "as_release": False,
        "stride": None,
        "dynamic": None,
        "tokens": N_TEST - 1,
        "tokens_left_out": 0,
        "unknown_tokens": 0,
        "unknown_share": 0.0,
        "loss_nats": pytest.approx(nats, rel=1e-6),  # float32
        "bits_per_token": pytest.approx(nats / math.log(2), rel=1e-6),
        "perplexity": pytest.approx(math.exp(nats), rel=1e-6),
        "unit": "perplexity",
    }


@pytest.mark.slow
def test_cold_lanes_are_those_of_the_release(run, capsys):
    capsys.readouterr()
    assert call(run, "--warm_lanes=false", "--lanes=4") == 0
    rows = read_rows(capsys.readouterr().out)
    config = dataclasses.replace(read_run_config(str(run)).evaluation, eval_batch_size=4)
    expected = score(run, config, drop_rest=True)
    assert rows["lanes"] == "4, as the 2019 release counts"
    assert rows["tokens"] == "144, 4 left out"
    assert rows["loss"] == f"{expected.nats_per_token:.4f} nats"


def test_flags_change_the_span(run, preset, capsys):
    flags = ["--tgt_len=5", "--mem_len=17", "--nosame_length", "--clamp_len=-1", "--lanes=2"]
    record = evaluate_as_json(capsys, run, f"--preset={preset}", *flags)
    config = txl_tf.EvalConfig(5, 17, same_length=False, clamp_len=-1, eval_batch_size=2)
    assert record["evaluation"] == config.to_json()


def test_a_figure_that_was_measured_otherwise_says_how(run, preset, capsys):
    assert call(run, "--preset", preset, "--tgt_len=5", "--split=valid") == 0
    assert read_rows(capsys.readouterr().out)["published"] == (
        "7.5 perplexity (words_tiny; on words, split test; "
        "with tgt_len 3, mem_len 13, same_length true, clamp_len 9)"
    )


def test_the_split_valid_is_shown_beside_its_own_figure(run, preset, monkeypatch, capsys):
    both = dataclasses.replace(presets.get(preset), published_valid="6.5 perplexity")
    monkeypatch.setitem(presets.PRESETS, preset, both)
    evaluation = [f"--preset={preset}", "--split=valid"]
    assert call(run, *evaluation) == 0
    assert read_rows(capsys.readouterr().out)["published"] == "6.5 perplexity (words_tiny)"
    record = evaluate_as_json(capsys, run, *evaluation)
    assert (record["published"], record["published_split"]) == ("6.5 perplexity", "valid")


@pytest.mark.slow
def test_all_ways_to_evaluate_give_one_number(tmp_path, capsys):
    data, folder = write_data(tmp_path / "data"), tmp_path / "run"
    flags = ("--eval_every=12", "--do_eval", "--eval_batch_size=7")
    large = ("--init_std=0.5", "--n_layer=2")  # so that memory matters
    assert run_main(data, folder, *flags, *large) == 0
    places = ("--run", folder, "--data_dir", data, "--split=valid")
    in_training = read_last(folder / "validation.jsonl")
    after_training = read_last(folder / "evaluations.jsonl")
    by_program = evaluate_as_json(capsys, *places)
    by_hand = txl_tf.load(folder).evaluate("valid", data_dir=str(data))
    found = [record["loss_nats"] for record in (in_training, after_training, by_program)]
    assert [*found, by_hand.nats_per_token] == [pytest.approx(found[0], rel=1e-6)] * 4  # float32
    for record in (in_training, after_training, by_program):
        assert (record["lanes"], record["warm_len"]) == (7, 30)
    alone = evaluate_as_json(capsys, *places, "--lanes=1")["loss_nats"]
    assert found[0] == pytest.approx(alone, abs=1e-5)
    cold = evaluate_as_json(capsys, *places, "--warm_len=0")["loss_nats"]
    assert abs(cold - alone) > 1e-4


def test_other_weights_of_a_run_are_read_into_an_open_model(run):
    def find_products(lm):
        lm.generate(np.arange(5), max_new_tokens=3)
        (generator,) = lm._generators.values()  # noqa: SLF001  texts of so small a model may agree
        return np.stack(generator.cached.positions)

    newest, lm = txl_tf.load(run, checkpoint="newest"), txl_tf.load(run, checkpoint=4)
    old, text = find_products(lm), [np.arange(5)]
    lm.score(text, jit="none")
    evaluator, split = lm.make_evaluator(jit="none"), open_records(run / "records").split("test")
    earlier = evaluator.score(split)
    lm.load_checkpoint(12)
    assert (lm.step, lm.checkpoint) == (12, newest.checkpoint)
    np.testing.assert_array_equal(find_products(lm), find_products(newest))
    assert (find_products(lm) != old).any()
    assert lm.score(text, jit="none")[0].total_nats == newest.score(text, jit="none")[0].total_nats
    expected = newest.make_evaluator(jit="none").score(split)
    assert evaluator.score(split) == expected != earlier
    with pytest.raises(UserError, match="`load_checkpoint` needs a run folder"):
        txl_tf.load("pydoc").load_checkpoint()


def read_last(path):
    """Returns the last record of a file."""
    return json.loads(path.read_text().splitlines()[-1])


@pytest.fixture(scope="module")
def unknown_run(tmp_path_factory):
    """A run on records of characters of which number 3 stands for unknown ones."""
    folder = tmp_path_factory.mktemp("unknown")
    symbols = ("a", "b", "c", "?", *"defghij")
    rng = np.random.default_rng(11)
    write_records(
        folder / "run" / "records",
        dataset="words",
        vocabulary=Vocabulary("char", symbols, unknown="?"),
        splits={"train": [rng.integers(0, 11, 307)], "valid": [np.arange(101) % 4]},
    )
    assert run_main(folder / "run" / "records", folder / "run") == 0
    return folder / "run"


@pytest.mark.slow
def test_unknown_tokens_are_counted_and_warned_of(unknown_run, capsys):
    assert call(unknown_run) == 0
    out, err = capsys.readouterr()
    rows = read_rows(out)
    assert rows["unknown"] == "25 (25.00%)"
    (line,) = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert line.startswith("warning: 25 (25.00%) of 100 scored tokens are ?: ")
    assert rows["bpc"] == "- (there are unknown characters)"
    record = evaluate_as_json(capsys, unknown_run)
    for found in (record, read_last(unknown_run / "evaluations.jsonl")):
        assert (found["unknown_tokens"], found["unknown_share"]) == (25, 0.25)
        assert found["bits_per_token"] == pytest.approx(found["loss_nats"] / math.log(2))
        assert found["bpc"] is None


@pytest.mark.slow
def test_evaluations_are_kept_with_how_they_counted(run, capsys):
    warm = evaluate_as_json(capsys, run, "--warm_len=4", "--split=valid")
    cold = evaluate_as_json(capsys, run, "--warm_lanes=false")
    lines = (run / "evaluations.jsonl").read_text().splitlines()[-2:]
    for line, record in zip(map(json.loads, lines), (warm, cold), strict=True):
        assert line == {name: record[name] for name in line}
        assert {"split", "loss_nats", "evaluation", "warm_len", "as_release"} <= line.keys()
    assert (warm["warm_len"], warm["as_release"]) == (5, False)
    assert (cold["warm_len"], cold["as_release"]) == (0, True)


def test_other_records_and_checkpoints_are_not_those_of_the_run(run, tmp_path, capsys):
    copy, data = tmp_path / "copy", tmp_path / "data"
    shutil.copytree(run, copy)
    records = txl_tf.load(run).records
    remember_data(str(copy), records.data_dir, records.checksums)
    write_words(data, seed=8, test=61)
    found = [
        evaluate_as_json(capsys, copy, *flags)["is_own"]
        for flags in ([], ["--data_dir", data], ["--checkpoint", run / "checkpoints" / "ckpt-12"])
    ]
    assert found == [True, False, False]
    (copy / "data.json").unlink()  # as in an imported run
    assert not evaluate_as_json(capsys, copy, "--data_dir", data)["is_own"]


def test_a_score_that_cannot_be_recorded_is_printed(bare_run, capsys):
    (bare_run / "evaluations.jsonl").unlink(missing_ok=True)
    (bare_run / "evaluations.jsonl").mkdir()
    assert call(bare_run, "--max_segments=1") == 0
    out, err = capsys.readouterr()
    assert "loss" in read_rows(out)
    assert "warning: the evaluation was not recorded: " in err


@pytest.fixture
def bare_run(run, tmp_path):
    """The run as it is without a vocabulary, as an import of weights alone."""
    shutil.copytree(run, tmp_path / "bare")
    (tmp_path / "bare" / VOCABULARY_NAME).unlink()
    return tmp_path / "bare"


def test_records_of_another_size_are_refused_without_a_vocabulary(bare_run, tmp_path, capsys):
    write_words(tmp_path / "data", n_token=13, test=61)
    assert call(bare_run, "--data_dir", tmp_path / "data") == 1
    line = capsys.readouterr().err.splitlines()[-1]
    data = tmp_path / "data"
    message = f"the model has 11 symbols; the records in {data} have 13"
    assert line.endswith(message)
    with pytest.raises(UserError, match=message):
        txl_tf.load(bare_run).evaluate("test", data_dir=str(data))


@pytest.mark.slow
def test_sliding_windows_read_no_memory(run, preset, capsys):
    arguments = [run, "--stride=2", "--tgt_len=5"]
    found = evaluate_as_json(capsys, *arguments)
    assert found["stride"] == 2
    assert found["tokens"] == N_TEST - 1
    assert found["evaluation"]["mem_len"] == 0
    assert call(*arguments) == 0
    out = capsys.readouterr().out
    assert "2 at a time, sliding windows with a stride of 2" in out
    assert "sliding windows with a stride of 2" in read_rows(out)["lanes"]
    # The preset has `same_length`, which needs a memory.
    assert call(*arguments, f"--preset={preset}", "--mem_len=0") == 0


@pytest.mark.slow
def test_what_xla_compiles_is_chosen_unless_a_flag_says(run, capsys):
    assert evaluate.main(["evaluate.py", f"--run={run}", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["tokens"] == N_TEST - 1
    assert "Scoring test with tgt_len 5, mem_len 7, " in err
