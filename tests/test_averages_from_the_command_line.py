"""Averages of weights, from the command line to the scores."""

import re

import pytest
from test_train_gpu import run_main, write_data


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Records and the folder of a run of 12 steps with moving averages."""
    folder = tmp_path_factory.mktemp("averaging")
    write_data(folder / "data")
    arguments = ("--ema=0.9", "--optimizer=lamb", "--weight_decay=0.01", "--eval_every=6")
    assert run_main(folder / "data", folder / "run", *arguments) == 0
    return folder


def evaluate(folder, capsys, *arguments):
    """Returns what the weights are called and their loss, as printed."""
    arguments = ("--do_train=false", "--do_eval", *arguments)
    assert run_main(folder / "data", folder / "run", *arguments) == 0
    out = capsys.readouterr().out
    ((weights, loss),) = re.findall(r"^valid at step 12(.*): loss ([\d.]+) nats", out, re.MULTILINE)
    return weights, float(loss)


def test_the_flag_of_the_averages_chooses_the_weights_that_are_evaluated(finished, capsys):
    averaged, raw = (
        evaluate(finished, capsys, *arguments) for arguments in ((), ("--use_ema=false",))
    )
    assert averaged[0] == ", averaged weights"
    assert raw[0] == ""
    assert averaged[1] != raw[1]


def test_the_flag_of_the_averages_chooses_those_that_a_run_is_judged_by(finished, tmp_path, capsys):
    arguments = ("--ema=0.9", "--eval_every=6", "--use_ema=false", "--train_steps=6")
    assert run_main(finished / "data", tmp_path / "run", *arguments) == 0
    assert "Evaluates the weights: ema 0.9." in capsys.readouterr().out
