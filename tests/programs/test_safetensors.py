"""A run as a folder of safetensors, as models are shared, in the programs."""

import json

import pytest
from small_commands import run_main

import txl_tf
from txl_tf import evaluate


@pytest.fixture(scope="module")
def shared(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared") / "model"
    txl_tf.load(run).save(folder, safetensors="float32")
    return folder


def score(capsys, folder, data_dir):
    arguments = [f"--run={folder}", f"--data_dir={data_dir}", "--split=valid", "--json"]
    assert evaluate.main(["evaluate", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    return found["loss_nats"], found["step"]


def test_it_is_evaluated_like_the_run(run, shared, capsys):
    data_dir = run.parent / "data"
    assert score(capsys, shared, data_dir) == score(capsys, run, data_dir)


def test_a_run_starts_from_it(run, shared, tmp_path, capsys):
    start = f"--warm_start_path={shared / 'model.safetensors'}"
    assert run_main(run.parent / "data", tmp_path / "new", start) == 0
    out = capsys.readouterr().out
    assert f"The model is that of {shared}" in out
    assert f"Warm start from the weights of {shared}" in out
