"""The picture of a run's losses."""

import json
import math

import pytest

from examples import plot_loss
from txl_tf import presets
from txl_tf.data import Vocabulary
from txl_tf.runs.folder import RunConfig, make_run_folder


def draw(*records):
    """Returns the points of each curve by its label."""
    (axes,) = plot_loss.draw_curves(*records).axes
    return {
        line.get_label(): list(zip(*map(list, line.get_data()), strict=True)) for line in axes.lines
    }


def make_record(step, bits, **more):
    return {"step": step, "loss_nats": bits * math.log(2), **more}


STEPS = [make_record(5, 3.0), {"step": 7, "bad_steps": 2}, make_record(11, 2.5)]
VALIDATION = [make_record(step, bits, split="valid") for step, bits in ((7, 3.25), (11, 2.75))]
TEST = [make_record(11, 2.875, split="test")]


def test_training_validation_and_evaluations_of_each_kind_are_drawn():
    dynamic = make_record(11, 2.5, split="test", dynamic={"rule": "rms"}, evaluation={})
    hot = make_record(11, 2.75, split="test", dynamic=None, evaluation={"temperature": 1.08})
    assert draw(STEPS, VALIDATION, [*TEST, dynamic, hot]) == {
        "train, mean since the previous log line": [(5, 3.0), (11, 2.5)],
        "valid during training, last: 2.750": [(7, 3.25), (11, 2.75)],
        "test, last: 2.875": [(11, 2.875)],
        "test (dynamic), last: 2.500": [(11, 2.5)],
        "test at temperature 1.08, last: 2.750": [(11, 2.75)],
    }


def write_run(folder, vocabulary=None, **logs):
    demo = presets.get("demo")
    config = RunConfig("text8", demo.model, demo.training, demo.evaluation)
    make_run_folder(str(folder), config, vocabulary)
    for name, records in logs.items():
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(lines)


@pytest.mark.parametrize(
    ("vocabulary", "unit"),
    [(Vocabulary("word", ("a",)), "bits per word"), (None, "bits per token")],
)
def test_the_plot_names_run_data_set_and_unit(vocabulary, unit, tmp_path):
    write_run(tmp_path / "small", vocabulary, log=STEPS)
    (axes,) = plot_loss.draw_run(tmp_path / "small").axes
    assert axes.get_title() == "Loss of run small on text8"
    assert axes.get_ylabel() == unit


@pytest.mark.parametrize("logs", [{}, {"validation": VALIDATION}], ids=list)
def test_a_run_with_or_without_validation_is_drawn(logs, tmp_path, capsys):
    write_run(tmp_path, log=STEPS, **logs)
    assert plot_loss.main(["plot_loss.py", f"--model_dir={tmp_path}"]) == 0
    assert capsys.readouterr().out == f"Wrote {tmp_path}/loss.png\n"
    assert (tmp_path / "loss.png").stat().st_size > 0


def test_a_log_whose_last_line_was_cut_is_drawn(tmp_path):
    write_run(tmp_path / "small", log=STEPS)
    with (tmp_path / "small/log.jsonl").open("a") as file:
        file.write('{"step": 20, "loss_n')
    (axes,) = plot_loss.draw_run(tmp_path / "small").axes
    assert len(axes.lines) == 1


def test_a_format_that_no_picture_has_is_one_line(tmp_path, capsys):
    write_run(tmp_path / "small", log=STEPS)
    command = ["", f"--model_dir={tmp_path}/small", f"--output={tmp_path}/loss.xyz"]
    assert plot_loss.main(command) == 1
    assert "loss.xyz` cannot be written: " in capsys.readouterr().err
