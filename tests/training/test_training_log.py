import json
import math

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

import txl_tf
from txl_tf.config.training import RunOptions
from txl_tf.runs.folder import RunConfig
from txl_tf.scoring.metrics import Score
from txl_tf.training.intervals import Interval
from txl_tf.training.log import TrainingLog

KEYS = {
    "step",
    "loss_nats",
    "bpc",
    "perplexity",
    "grad_norm",
    "learning_rate",
    "tokens_per_second",
    "bad_steps",
    "parameter_norm",
}
GAUGES = {"parameter_norm": 7.5}
CONFIG = RunConfig(
    "words",
    txl_tf.ModelConfig(n_token=23),
    txl_tf.TrainConfig(train_steps=17, train_batch_size=6, tgt_len=5),
    txl_tf.EvalConfig(),
)
OPTIONS = RunOptions(save_steps=1000)


def make_interval(step, seconds):
    """Two steps of 30 tokens with a mean loss of `step` / 10 nats."""
    tokens = np.array([30.0, 30.0], np.float32)
    nats = tokens * step / 10 + np.array([-7.0, 7.0], np.float32)
    norms, rates = np.array([5.0, 0.5], np.float32), np.array([0.25, 0.125], np.float32)
    return Interval(step, nats, tokens, norms, rates, tokens, np.array(seconds))


def make_log(model_dir, *, config=CONFIG, first_step=0, level="byte"):
    return TrainingLog(str(model_dir), config, OPTIONS, first_step=first_step, level=level)


def write_steps(model_dir, steps, *, seconds=(2.0, 2.0), save_seconds=0.0, **fields):
    log = make_log(model_dir, **fields)
    log.time_left.save_seconds = save_seconds
    return [log.write_training(make_interval(step, seconds), GAUGES) for step in steps]


def read_log(model_dir):
    lines = (model_dir / "log.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def read_steps(model_dir):
    return [record["step"] for record in read_log(model_dir)]


def test_a_line_holds_all_numbers(tmp_path):
    write_steps(tmp_path, [3])
    (record,) = read_log(tmp_path)
    assert set(record) == KEYS
    # The mean over the interval, of sums of float32.
    assert record["loss_nats"] == pytest.approx(0.3, rel=1e-6)
    assert record["bpc"] == pytest.approx(0.3 / math.log(2), rel=1e-6)
    assert record["perplexity"] == pytest.approx(math.exp(0.3), rel=1e-6)
    assert (record["grad_norm"], record["learning_rate"]) == (0.5, 0.125)  # of the last step


def test_steps_that_were_compiled_first_say_nothing_of_the_speed(tmp_path):
    some = write_steps(tmp_path, [2], seconds=(math.nan, 2.0))
    no = write_steps(tmp_path, [4], first_step=2, seconds=(math.nan, math.nan))
    records = read_log(tmp_path)
    assert records[0]["tokens_per_second"] == 15.0
    assert "| 15 tokens/s | 0:00:30 left" in some[0]
    assert set(records[1]) == KEYS - {"tokens_per_second"}
    assert no[0].endswith("| lr 0.125")


def test_the_line_for_people_tells_step_loss_and_time_left(tmp_path):
    (line,) = write_steps(tmp_path, [9], first_step=7, seconds=(30.0, 30.0), save_seconds=3.0)
    assert line.startswith("step 9/17 | loss 0.9000 | bpc 1.2984 | ppl 2.4596 | ")
    assert line.endswith("| 1 tokens/s | 0:04:03 left")  # 8 steps of 30 seconds, one save


def test_tokens_that_are_no_characters_have_bits_per_token(tmp_path):
    (line,) = write_steps(tmp_path, [9], level="subword")
    assert "| loss 0.9000 | bits per token 1.2984 | ppl 2.4596 | " in line
    (record,) = read_log(tmp_path)
    assert set(record) == KEYS - {"bpc"} | {"bits_per_token"}
    tags = read_events(tmp_path / "events" / "train").Tags()["tensors"]
    assert not any("bpc" in tag for tag in tags)
    assert "loss/bits_per_token" in tags


def test_steps_that_are_taken_again_stand_there_once(tmp_path):
    write_steps(tmp_path, [2, 4, 6])
    write_steps(tmp_path, [3, 5, 7], first_step=2)
    assert read_steps(tmp_path) == [2, 3, 5, 7]
    write_steps(tmp_path, [3])  # from the start
    assert read_steps(tmp_path) == [3]


@pytest.mark.parametrize("n_lost", [1, 30])
def test_a_last_line_that_was_cut_does_no_harm(tmp_path, n_lost):
    write_steps(tmp_path, [2, 4])
    path = tmp_path / "log.jsonl"
    path.write_bytes(path.read_bytes()[:-n_lost])
    write_steps(tmp_path, [6], first_step=4)
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert steps == ([2, 4, 6] if n_lost == 1 else [2, 6])  # the newline alone is no loss


def read_events(folder):
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    return events


def read_points(events, tag):
    """Returns the numbers of a tag by step."""
    tensors = {event.step: tf.make_ndarray(event.tensor_proto) for event in events.Tensors(tag)}
    return {step: float(tensor) for step, tensor in tensors.items()}


LOSSES = {"loss_nats", "bpc", "perplexity"}


def test_tensorboard_shows_the_numbers_of_every_line(tmp_path):
    write_steps(tmp_path, [2, 4])
    events = read_events(tmp_path / "events" / "train")
    records = read_log(tmp_path)
    tags = {key: f"{'loss' if key in LOSSES else 'train'}/{key}" for key in KEYS - {"step"}}
    assert set(events.Tags()["tensors"]) == set(tags.values())
    for key, tag in tags.items():
        expected = {record["step"]: pytest.approx(record[key], rel=1e-6) for record in records}
        assert read_points(events, tag) == expected  # float32 there, float64 here


def test_tensorboard_shows_validation_with_a_sample(tmp_path):
    """In the charts of training."""
    log = make_log(tmp_path)
    score = Score(total_nats=20 * math.log(2), tokens=10, level="byte", n_unknown=0)
    log.write_validation(5, score, "    a text")
    events = read_events(tmp_path / "events" / "validation")
    assert set(events.Tags()["tensors"]) == {"sample", *(f"loss/{name}" for name in LOSSES)}
    assert read_points(events, "loss/bpc") == {5: pytest.approx(2)}
    (sample,) = events.Tensors("sample")
    assert (sample.step, tf.make_ndarray(sample.tensor_proto)) == (5, b"    a text")


def test_tensorboard_shows_the_hyper_parameters(tmp_path):
    config = RunConfig(
        "words",
        txl_tf.ModelConfig(n_token=23, cutoffs=(5, 11), untie_r=True),
        txl_tf.TrainConfig(learning_rate=0.125, optimizer="lamb"),
        txl_tf.EvalConfig(eval_batch_size=3, mem_len=13),
    )
    make_log(tmp_path, config=config)
    metadata = read_events(tmp_path / "events").SummaryMetadata("_hparams_/session_start_info")
    content = HParamsPluginData.FromString(metadata.plugin_data.content)
    values = {
        name: getattr(value, value.WhichOneof("kind"))
        for name, value in content.session_start_info.hparams.items()
    }
    expected = {
        "dataset": "words",
        "n_token": 23,
        "cutoffs": "(5, 11)",
        "untie_r": True,
        "learning_rate": 0.125,
        "optimizer": "lamb",
        "eval_batch_size": 3,
        "eval_mem_len": 13,
        "mem_len": 70,
    }
    assert {name: values[name] for name in expected} == expected


def test_a_score_of_words_tells_bits_per_token_and_unknown_words():
    score = Score(total_nats=2000 * math.log(2), tokens=1000, level="word", n_unknown=420)
    assert score.describe(1999) == (
        "loss 1.3863 nats | bits per token 2.0000 | perplexity 4 | "
        "1,000 tokens of 1,999, 420 (42.00%) unknown"
    )


def test_unknown_characters_are_recorded_in_bits_per_token():
    score = Score(total_nats=20 * math.log(2), tokens=10, level="char", n_unknown=3)
    losses = score.losses
    assert (losses["bpc"], losses["bits_per_token"]) == (None, 2.0)
