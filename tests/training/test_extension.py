"""Runs that go on for more steps than they were begun with."""

import contextlib
import dataclasses
import io
import json
import shutil

import pytest
from small_runs import CONFIG, DROPPING, train

from txl_tf.runs.checkpoint_choice import list_checkpoints
from txl_tf.runs.folder import read_run_config
from txl_tf.training.schedule import make_schedule

BEGUN = dataclasses.replace(CONFIG, model=dataclasses.replace(DROPPING, n_layer=1))


def change_steps(train_steps):
    return dataclasses.replace(
        BEGUN, training=dataclasses.replace(BEGUN.training, train_steps=train_steps)
    )


EXTENDED = change_steps(17)


@pytest.fixture(scope="module")
def begun(one_replica, records, tmp_path_factory):
    """The folder of a run that has made its 7 steps; tests change a copy."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    train(one_replica, records, folder, BEGUN)
    return folder


@pytest.fixture(scope="module")
def longer(one_replica, records, begun, tmp_path_factory):
    """The folder of the run extended to 17 steps, and what that printed; tests change a copy."""
    folder = shutil.copytree(begun, tmp_path_factory.mktemp("longer") / "run")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        train(one_replica, records, folder, EXTENDED)
    return folder, out.getvalue()


@pytest.fixture
def extended(longer, tmp_path):
    return shutil.copytree(longer[0], tmp_path / "run")


def read_lines(model_dir):
    """Returns loss and learning rate of each logged step."""
    lines = map(json.loads, (model_dir / "log.jsonl").read_text().splitlines())
    return {line["step"]: (line["loss_nats"], line["learning_rate"]) for line in lines}


def test_an_extended_run_follows_the_schedule_to_its_new_end(longer):
    folder, _ = longer
    assert [step for step, _ in list_checkpoints(str(folder))][-1] == 17
    assert read_run_config(str(folder)) == EXTENDED
    schedule = make_schedule(EXTENDED.training)
    rates = {step: rate for step, (_, rate) in read_lines(folder).items() if step > 7}
    assert rates == {
        step: pytest.approx(float(schedule(step - 1)), rel=1e-4) for step in rates
    }  # float32 near its end


def test_an_extension_says_what_the_schedule_becomes(
    one_replica, records, longer, extended, capsys
):
    old, new = (float(make_schedule(config.training)(7)) for config in (BEGUN, EXTENDED))
    assert (
        "train_steps is now 17 instead of 7: the cosine of the learning rate ends at step 17, and "
        f"the rate at step 7 changes from {old:.3g} to {new:.3g}.\n"
    ) in longer[1]
    train(one_replica, records, extended, EXTENDED)
    assert "train_steps is now" not in capsys.readouterr().out


def test_a_run_may_be_shortened_to_what_it_has_made(one_replica, records, extended, capsys):
    for path in (extended / "checkpoints").glob("ckpt-1[57].*"):
        path.unlink()
    train(one_replica, records, extended, change_steps(12))
    assert "All 12 steps are done." in capsys.readouterr().out
    assert read_run_config(str(extended)).training.train_steps == 12
