"""How long a run still takes, by durations that a test sets."""

import dataclasses

import pytest

import txl_tf
from txl_tf.config.training import RunOptions
from txl_tf.training.log import TimeLeft

TRAINING = txl_tf.TrainConfig(train_steps=100, train_batch_size=3, tgt_len=5)


def make(training=TRAINING, **options):
    """Returns what estimates a run of 15 tokens a step, of which one takes a second."""
    time_left = TimeLeft(training, RunOptions(**{"save_steps": 1000} | options))
    time_left.tokens_per_second = 15.0
    return time_left


@pytest.mark.parametrize(("step", "count"), [(60, 3), (61, 2), (100, 1)])
def test_saves_to_come_are_counted_with_that_which_is_due(step, count):
    time_left = make(save_steps=20)
    time_left.save_seconds = 60.0
    assert time_left.describe(step) == f"0:{count:02}:{100 - step:02} left"


def test_evaluations_to_come_are_counted():
    time_left = make(eval_every=30)
    time_left.evaluation_seconds = 60.0
    assert time_left.describe(70) == "0:02:30 left"  # at steps 90 and 100


def test_without_a_speed_the_time_left_is_not_known():
    assert TimeLeft(TRAINING, RunOptions(eval_every=30)).describe(0) == ""


def test_segments_of_half_the_length_take_half_as_long():
    training = dataclasses.replace(TRAINING, mem_len=0, half_len_rate=0.5)
    assert make(training).describe(20) == "0:01:00 left"


def test_longer_segments_take_longer():
    schedule = txl_tf.TrainConfig(
        train_steps=100, train_batch_size=3, tgt_len=10, tgt_len_schedule=((50, 5),)
    )
    # 10 steps of 15 tokens, then 50 of 30.
    assert make(schedule).describe(40) == "0:01:50 left"
