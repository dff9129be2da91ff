"""A run as a folder of safetensors, as models are shared, in the programs."""

import json
import re
import shutil

import pytest
from small_commands import run_main

import txl_tf
from txl_tf.programs import evaluate, train


@pytest.fixture(scope="module")
def shared(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared") / "model"
    txl_tf.load(run).save(folder, safetensors="float32")
    return folder


def score(capsys, folder, data_dir):
    arguments = [
        f"--run={folder}",
        f"--data_dir={data_dir}",
        "--split=valid",
        "--json",
        "--jit=none",
    ]
    assert evaluate.main(["evaluate", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    return found["loss_nats"], found["step"]


def test_a_shared_model_is_evaluated_like_its_run(run, shared, capsys):
    data_dir = run.parent / "data"
    assert score(capsys, shared, data_dir) == score(capsys, run, data_dir)


def test_a_run_starts_from_it(run, shared, tmp_path, capsys):
    start = f"--warm_start_path={shared / 'model.safetensors'}"
    assert run_main(run.parent / "data", tmp_path / "new", start, "--dry_run") == 0
    assert run_main(run.parent / "data", tmp_path / "new", start) == 0
    out = capsys.readouterr().out
    assert f"The model is that of {shared}" in out
    assert f"Warm start from the weights of {shared}" in out


@pytest.mark.parametrize("flags", [[], ["--dry_run"]], ids=["train", "dry_run"])
def test_training_does_not_begin_anew_in_its_folder(run, shared, flags, capsys):
    before = sorted(shared.iterdir())
    assert run_main(run.parent / "data", shared, *flags) == 1
    start = f"--warm_start_path={shared / 'model.safetensors'}"
    message = f"holds only weights: start from them in a new `model_dir`, with {start}"
    assert message in capsys.readouterr().err
    assert sorted(shared.iterdir()) == before


def test_a_dry_run_refuses_what_training_refuses(run, shared, tmp_path, capsys):
    txl_tf.load(run).save(tmp_path / "bare")
    (start,) = (tmp_path / "bare" / "checkpoints").glob("*.index")
    start, begun = start.with_suffix(""), tmp_path / "begun"
    other = f"--warm_start_path={shared / 'model.safetensors'}"
    shutil.copytree(run, begun)
    for path in (begun / "checkpoints").glob("ckpt-12.*"):
        path.unlink()
    cases = (
        (tmp_path / "bare", [], f"{start} holds only weights: start from them in a new"),
        (begun, ["--stop_step=3"], "the run is at step 8 already: `stop_step` must be higher"),
        (tmp_path / "new", [f"--warm_start_path={start}", "--n_layer=2"], "another model: n_layer"),
        (tmp_path / "new", [other, "--n_layer=2"], "holds the weights of another model: "),
    )
    for folder, flags, message in cases:
        for more in ([], ["--dry_run"]):
            assert run_main(run.parent / "data", folder, *flags, *more) == 1
            assert message in capsys.readouterr().err


def test_a_run_without_steps_still_starts_from_it(run, shared, tmp_path, capsys):
    start = f"--warm_start_path={shared / 'model.safetensors'}"
    assert run_main(run.parent / "data", tmp_path / "new", start) == 0
    shutil.rmtree(tmp_path / "new" / "checkpoints")  # killed before the first one
    capsys.readouterr()
    assert train.main(["train", f"--run={tmp_path / 'new'}", "--jit=none"]) == 0
    assert f"Warm start from the weights of {shared}" in capsys.readouterr().out


def test_a_shared_model_has_no_records(shared):
    with pytest.raises(txl_tf.UserError, match="has no records of its own"):
        txl_tf.load(shared).evaluate()


def test_other_users_may_read_it(shared):
    modes = {path.name: path.stat().st_mode for path in shared.iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]


def test_a_damaged_file_is_one_line(run, shared, tmp_path, capsys):
    shutil.copytree(shared, tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    arguments = [f"--run={tmp_path / 'model'}", f"--data_dir={run.parent / 'data'}"]
    assert evaluate.main(["evaluate", *arguments, "--split=valid"]) == 1
    assert re.fullmatch(r"evaluate: `.*safetensors` cannot be read: .*\n", capsys.readouterr().err)
