"""What happens between the steps of a run: saving, evaluating, stopping, going on."""

import dataclasses
import json
import os
import re
import signal

import numpy as np
import pytest
import tensorflow as tf
from small_runs import CONFIG, read_log_steps, train
from tables import slow_after

from txl_tf.config.training import RunOptions
from txl_tf.errors import StoppedError, UserError
from txl_tf.models.compilation import explain_full_memory
from txl_tf.runs.checkpoint_choice import list_checkpoints
from txl_tf.scoring.metrics import Score
from txl_tf.training import job, loop
from txl_tf.training.trainer import Trainer
from txl_tf.training.workers import Workers


def list_steps(model_dir):
    return [step for step, _ in list_checkpoints(str(model_dir))]


@pytest.fixture
def send(monkeypatch):
    """Returns a function that has a signal come in after a step."""

    def send(number, step):
        run = Trainer.run

        def run_and_send(trainer, *args, **kwargs):
            interval = run(trainer, *args, **kwargs)
            if interval.step == step:
                os.kill(os.getpid(), number)
            return interval

        monkeypatch.setattr(Trainer, "run", run_and_send)

    return send


@pytest.mark.parametrize(
    ("number", "status"), slow_after(1, [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
)
def test_a_signal_saves_the_step_and_stops(
    number, status, send, one_replica, records, tmp_path, monkeypatch
):
    monkeypatch.setattr(loop, "CALL_SECONDS", 1e-9)
    send(number, 5)
    handler = signal.getsignal(number)
    with pytest.raises(StoppedError, match=f"{signal.Signals(number).name} at step 5") as stop:
        train(one_replica, records, tmp_path / "run", iterations=7, save_steps=7)
    assert stop.value.status == status
    assert list_steps(tmp_path / "run") == [5]
    assert signal.getsignal(number) is handler


def test_a_second_signal_stops_at_once(send, one_replica, records, tmp_path, monkeypatch):
    send(signal.SIGINT, 2)
    monkeypatch.setattr(loop.TrainingLog, "write_training", lambda *_: os.kill(os.getpid(), 2))
    with pytest.raises(KeyboardInterrupt):
        train(one_replica, records, tmp_path / "run")


def test_a_run_that_ends_at_its_last_step_was_not_stopped(send, one_replica, records, tmp_path):
    send(signal.SIGTERM, 7)
    assert train(one_replica, records, tmp_path / "run") == signal.SIGTERM
    assert list_steps(tmp_path / "run")[-1] == 7


@pytest.fixture
def scores(monkeypatch):
    """Lets evaluations give the losses that a test puts into the list, in order."""
    losses = []
    monkeypatch.setattr(
        "txl_tf.scoring.evaluator.Evaluator.score_lanes",
        lambda *_: Score(11 * losses.pop(0), 11),
    )
    return losses


def test_evaluations_in_training_are_written_down(one_replica, records, tmp_path, capsys):
    train(one_replica, records, tmp_path / "run", eval_every=3)
    lines = (tmp_path / "run" / "validation.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [line["step"] for line in found] == [3, 6, 7]
    assert {(line["tokens"], line["lanes"], line["warm_len"]) for line in found} == {(60, 2, 33)}
    assert all("bits_per_token" in line and "bpc" not in line for line in found)
    assert "valid at step 6: loss " in (out := capsys.readouterr().out)
    assert "| 60 tokens | 2 lanes, warmed by 33 tokens" in out


def test_the_first_loss_is_shown_once_whatever_the_iterations(
    one_replica, records, tmp_path, capsys
):
    train(one_replica, records, tmp_path / "run", iterations=2)
    out = capsys.readouterr().out
    assert out.count("Compiled: step 1 has a loss of ") == 1
    assert out.index("Compiled: ") < out.index("step 2/7")


def test_a_terminal_sees_loss_and_speed_beside_the_bar(
    one_replica, records, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    train(one_replica, records, tmp_path / "run", iterations=1)
    shown = capsys.readouterr().err
    assert "compiling:   0%" in shown
    assert re.search(r"training: 100%.* 7/7, loss \d\.\d+, [\d,]+ tokens/s, 0:00:00 left", shown)


def test_the_best_step_is_saved_out_of_turn_and_kept(scores, one_replica, records, tmp_path):
    scores += [5.0, 2.0, 3.0, 4.0]
    train(one_replica, records, tmp_path / "run", eval_every=2, keep_checkpoints=1, save_steps=5)
    assert list_steps(tmp_path / "run") == [4, 7]


def test_an_evaluation_that_fails_loses_no_step(
    one_replica, records, tmp_path, monkeypatch, capsys
):
    with monkeypatch.context() as failing:
        failing.setattr("txl_tf.scoring.evaluator.Evaluator.score_lanes", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(one_replica, records, tmp_path / "run", eval_every=5, save_steps=7)
    assert list_steps(tmp_path / "run") == [5]
    assert "step 5 failed; resuming does not repeat it" in capsys.readouterr().out
    train(one_replica, records, tmp_path / "run", eval_every=5, save_steps=7)
    lines = (tmp_path / "run" / "validation.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [7]


@pytest.mark.slow
def test_evaluations_with_other_settings_than_before_are_named(
    one_replica, records, tmp_path, capsys
):
    n = CONFIG.evaluation.mem_len
    longer = dataclasses.replace(CONFIG.evaluation, mem_len=n + 1)
    other = dataclasses.replace(CONFIG, evaluation=longer)
    for config, options in (
        (CONFIG, {"stop_step": 2}),  # evaluates nothing
        (other, {"eval_every": 2, "stop_step": 4}),
        (other, {"eval_every": 2, "stop_step": 6}),
    ):
        with pytest.raises(StoppedError):
            train(one_replica, records, tmp_path / "run", config, **options)
    assert "other settings" not in capsys.readouterr().err
    train(one_replica, records, tmp_path / "run", eval_every=2)
    assert f"mem_len is {n + 1} there and {n} here" in capsys.readouterr().err


def test_a_sample_that_does_not_fit_into_memory_ends_nothing(
    one_replica, records, tmp_path, capsys
):
    def sample():
        with explain_full_memory("to generate"):
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    options = RunOptions(iterations=2, save_steps=3, eval_every=3)
    run = job.TrainJob(str(tmp_path / "run"), records, CONFIG, options)
    job.open_training(run, Workers(one_replica), make_sampler=lambda model: sample).run()
    assert list_steps(tmp_path / "run")[-1] == 7
    assert "No sample: the device has too little memory to generate" in capsys.readouterr().out


def test_training_ends_for_good_when_its_patience_is_over(
    scores, one_replica, records, tmp_path, capsys
):
    scores += [5.0, 2.0, 3.0, 2.0]
    train(one_replica, records, tmp_path / "run", eval_every=1, patience=2, iterations=1)
    assert read_log_steps(tmp_path / "run") == [1, 2, 3, 4]
    assert "2 evaluations without an improvement on step 2" in capsys.readouterr().out
    train(one_replica, records, tmp_path / "run", eval_every=1, patience=2, iterations=1)
    assert read_log_steps(tmp_path / "run") == [1, 2, 3, 4]


def test_a_resumed_run_forgets_the_evaluations_that_it_repeats(
    scores, one_replica, records, tmp_path
):
    scores += [5.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0]
    train(one_replica, records, tmp_path / "run", eval_every=1, save_steps=3)
    for path in (tmp_path / "run" / "checkpoints").glob("ckpt-[67].*"):
        path.unlink()
    scores += [1.0] * 7
    train(one_replica, records, tmp_path / "run", eval_every=1, save_steps=3)
    lines = (tmp_path / "run" / "validation.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.slow
def test_a_run_resumes_from_evaluations_before_lanes_were_warmed(
    send, one_replica, records, tmp_path, monkeypatch
):
    with monkeypatch.context():
        send(signal.SIGTERM, 5)
        with pytest.raises(StoppedError):
            train(one_replica, records, tmp_path / "run", iterations=1, eval_every=2)
    monkeypatch.undo()
    path = tmp_path / "run" / "validation.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    new = ("bits_per_token", "unknown_tokens", "unknown_share", "lanes", "warm_len")
    old = [
        {name: line[name] for name in line if name not in new} | {"bpc": line["bits_per_token"]}
        for line in lines
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    train(one_replica, records, tmp_path / "run", iterations=1, eval_every=2)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert found[: len(old)] == old
    assert [line["warm_len"] for line in found[len(old) :]] == [33, 33]


def spoil(monkeypatch, steps):
    """Has some steps reported as not finite."""
    run = Trainer.run

    def run_and_spoil(trainer, *args, **kwargs):
        interval = run(trainer, *args, **kwargs)
        first = interval.step - len(interval.nats)
        is_bad = np.isin(np.arange(first, interval.step), steps)
        return interval._replace(grad_norm=np.where(is_bad, np.nan, interval.grad_norm))

    monkeypatch.setattr(Trainer, "run", run_and_spoil)


def test_bad_steps_apart_are_counted_and_do_not_end_the_run(
    one_replica, records, tmp_path, monkeypatch, capsys
):
    spoil(monkeypatch, [0, 1, 3, 4, 6])
    train(one_replica, records, tmp_path / "run", max_bad_steps=2)
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    counts = {line["step"]: line["bad_steps"] for line in map(json.loads, lines)}
    assert counts == {2: 2, 3: 0, 4: 1, 6: 1, 7: 1}
    assert "1 steps skipped, not finite" in capsys.readouterr().out


def test_too_many_bad_steps_in_a_row_end_the_run_by_name(
    one_replica, records, tmp_path, monkeypatch
):
    spoil(monkeypatch, [1, 3, 4, 5])  # in two calls
    with pytest.raises(UserError, match="not finite at step 5: more than max_bad_steps=2"):
        train(one_replica, records, tmp_path / "run", max_bad_steps=2)
    assert list_steps(tmp_path / "run") == [3]
