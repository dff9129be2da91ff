"""Averages of weights, from the command line to the scores."""

import json
import re
import shlex
import shutil

import pytest
from small_commands import run_main, write_data

from txl_tf.programs import average, train

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Records and the folder of a run of 12 steps with moving averages."""
    folder = tmp_path_factory.mktemp("averaging")
    write_data(folder / "data")
    arguments = ("--ema=0.9", "--optimizer=lamb", "--weight_decay=0.01", "--eval_every=6")
    assert run_main(folder / "data", folder / "run", *arguments) == 0
    return folder


def read_scores(out):
    """Returns what the weights are called and their loss, of each score of step 12."""
    found = re.findall(r"^valid at step 12(.*): loss ([\d.]+) nats", out, flags=re.MULTILINE)
    return [(weights, float(loss)) for weights, loss in found]


def evaluate(folder, capsys, *arguments):
    arguments = ("--do_train=false", "--do_eval", *arguments)
    assert run_main(folder / "data", folder / "run", *arguments) == 0
    (score,) = read_scores(capsys.readouterr().out)
    return score


def test_evaluations_use_averages_or_weights_as_the_flag_says(finished, capsys):
    averaged, raw = (
        evaluate(finished, capsys, *arguments) for arguments in ((), ("--use_ema=false",))
    )
    assert averaged[0] == ", averaged weights"
    assert raw[0] == ""
    assert averaged[1] != raw[1]


def test_the_printed_command_evaluates_an_average_of_checkpoints(finished, capsys):
    assert average.main(["average.py", str(finished / "run"), "--steps=4,12"]) == 0
    command = capsys.readouterr().out.splitlines()[-1]
    command = command.replace("DATA_DIR", str(finished / "data"))
    txl, *arguments = shlex.split(command)
    assert (txl, arguments[0]) == ("txl", "train")
    assert train.main([*arguments, "--jit=none"]) == 0
    ((weights, loss),) = read_scores(capsys.readouterr().out)
    assert weights == ""
    assert loss != evaluate(finished, capsys, "--use_ema=false")[1]


def test_the_evaluations_of_an_average_go_when_it_is_replaced(finished, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(finished / "run", folder, ignore=shutil.ignore_patterns("averaged"))
    assert average.main(["average.py", str(folder), "--steps=4,12"]) == 0
    lines = [{"checkpoint": f"old/{name}/ckpt-12"} for name in ("averaged", "checkpoints")]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "evaluations.jsonl").write_text(text)
    assert average.main(["average.py", str(folder), "--steps=8,12", "--overwrite"]) == 0
    assert [json.loads((folder / "evaluations.jsonl").read_text())] == lines[1:]
