"""The mean of checkpoints, and the program that writes it."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from small_runs import (
    AVERAGING,
    CONFIG,
    RUN_ID,
    WORDS,
    Bare,
    copy_checkpoint,
    cut,
    flip,
    make_checkpointer,
)

import txl_tf
from txl_tf.programs import average
from txl_tf.runs.checkpoint import CheckpointReader, load_weights
from txl_tf.runs.folder import make_run_folder
from txl_tf.training.update_rules import make_optimizer

STEPS = (2, 3, 5, 7)
LARGE = {3: 2.0**24, 7: -(2.0**24)}  # sums in float32 would lose the rest


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run, and by step the weights of its checkpoints."""
    folder = tmp_path_factory.mktemp("averaged") / "run"
    make_run_folder(str(folder), CONFIG, WORDS, RUN_ID)
    bare, rng, weights = Bare(CONFIG.model), np.random.default_rng(5), {}
    checkpointer = make_checkpointer(folder, bare)
    for step in STEPS:
        for weight in bare.model.weights:
            weight.assign(rng.normal(size=weight.shape) + LARGE.get(step, 0.0))
        bare.set_step(step)
        checkpointer.save()
        weights[step] = {weight.path: weight.numpy() for weight in bare.model.weights}
    return folder, weights


@pytest.fixture
def folder(run, tmp_path):
    """A copy of the run, to be changed."""
    return shutil.copytree(run[0], tmp_path / "run")


def call(folder, *arguments):
    return average.main(["average.py", f"--model_dir={folder}", *arguments])


def test_a_checkpoint_under_the_name_of_another_step_is_not_averaged(folder, capsys):
    copy_checkpoint(folder / "checkpoints" / "ckpt-3", folder / "checkpoints" / "ckpt-160")
    assert call(folder) == 1
    assert "ckpt-160 does not match its folder and name" in capsys.readouterr().err
    assert not (folder / "averaged").exists()


def list_files(folder):
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ([], STEPS),
        (["--last=3"], STEPS[1:]),
        (["--steps=7,3"], (3, 7)),
    ],
)
def test_an_average_is_the_mean_of_the_checkpoints(run, folder, arguments, steps, capsys):
    assert call(folder, *arguments) == 0
    listed = ", ".join(map(str, steps))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        f"Averaging the weights of {len(steps)} checkpoints of {folder}: steps {listed}."
    )
    path = folder / "averaged" / "ckpt-7"
    assert lines[1] == f"Saved {path}. To evaluate it:"
    model = txl_tf.TransformerXL(CONFIG.model, seed=11)
    assert load_weights(model, str(path)) is False
    for weight in model.weights:
        expected = np.mean([np.float64(run[1][step][weight.path]) for step in steps], axis=0)
        # Rounded to float32 once; the sums in float64 may have another order.
        np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-7, atol=1e-8)


def test_an_average_holds_weights_alone_and_names_its_origin(folder):
    assert call(folder, "--steps=2,5") == 0
    reader = CheckpointReader(str(folder / "averaged" / "ckpt-5"))
    assert {name.split("/")[0] for name in reader.keys} == {
        *("weights", "config", "origin", "_CHECKPOINTABLE_OBJECT_GRAPH")
    }
    assert reader.origin == (5, RUN_ID)
    assert not reader.has_memory
    assert sorted(os.listdir(folder / "averaged")) == ["ckpt-5.data-00000-of-00001", "ckpt-5.index"]


def test_an_average_is_not_overwritten_unasked(folder, capsys):
    assert call(folder, "--last=2") == 0
    before = list_files(folder)
    assert call(folder, "--last=3") == 1
    path = folder / "averaged" / "ckpt-7"
    message = f"average.py: {path} already exists: pass --overwrite to replace it\n"
    assert capsys.readouterr().err == message
    assert list_files(folder) == before
    assert call(folder, "--last=3", "--overwrite") == 0
    after = list_files(folder / "averaged")
    assert after["ckpt-7.data-00000-of-00001"] != before["averaged/ckpt-7.data-00000-of-00001"]
    # The checkpoints of the run stay as they are.
    found = list_files(folder / "checkpoints").items()
    assert all(before[f"checkpoints/{name}"] == content for name, content in found)


def test_moving_averages_are_left_out_and_that_is_said(folder, capsys):
    bare = Bare(CONFIG.model)
    bare.optimizer = make_optimizer(AVERAGING)
    bare.optimizer.build(bare.model.trainable_variables)
    for weight in bare.model.weights:
        weight.assign(weight.numpy() + 1)
    for step in (11, 13):
        bare.set_step(step)
        make_checkpointer(folder, bare).save()
    assert call(folder, "--last=2") == 0
    assert (
        "\nTheir averaged weights (--ema, --average_from) are left out.\n"
        in capsys.readouterr().out
    )
    model = txl_tf.TransformerXL(CONFIG.model, seed=11)
    load_weights(model, str(folder / "averaged" / "ckpt-13"))
    for weight, expected in zip(model.weights, bare.model.weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), expected.numpy(), err_msg=weight.path)


@pytest.mark.parametrize(
    ("damage", "part"), [(cut, "ckpt-5.index"), (flip, "ckpt-5.data-00000-of-00001")]
)
def test_a_damaged_checkpoint_is_one_line_and_nothing_is_written(folder, damage, part, capsys):
    damage(folder / "checkpoints" / part)
    assert call(folder) == 1
    message = capsys.readouterr().err
    path = folder / "checkpoints" / "ckpt-5"
    assert message.startswith(f"average.py: checkpoint {path} cannot be read: ")
    assert message.count("\n") == 1
    assert not (folder / "averaged").exists()


def change_model(folder):
    deeper = Bare(CONFIG.model.from_json({**CONFIG.model.to_json(), "n_layer": 2}))
    deeper.set_step(11)
    make_checkpointer(folder, deeper).save()


def test_checkpoints_of_different_models_are_not_averaged(folder, capsys):
    change_model(folder)
    assert call(folder) == 1
    found = capsys.readouterr().err.replace(str(folder), "FOLDER")
    paths = "FOLDER/checkpoints/ckpt-2 and FOLDER/checkpoints/ckpt-11"
    assert found.startswith(f"average.py: checkpoints {paths}")
    assert found.count("\n") == 1
    assert not (folder / "averaged").exists()


def fill_disk(_, path):
    (Path(path).parent / "ckpt-7.data-00000-of-00001").write_text("half")
    raise tf.errors.ResourceExhaustedError(None, None, "No space left on device\nmore lines")


def test_an_average_that_cannot_be_written_leaves_nothing(folder, monkeypatch, capsys):
    monkeypatch.setattr(tf.train.Checkpoint, "write", fill_disk)
    assert call(folder) == 1
    path = folder / "averaged" / "ckpt-7"
    message = f"average.py: checkpoint {path} could not be saved: No space left on device\n"
    assert capsys.readouterr().err == message
    assert os.listdir(folder / "averaged") == []
