"""Runs whose segments change their length: the steps are those of a loop by hand."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from small_checkpoints import make_checkpointer
from small_jobs import CONFIG, make_records, read_log_steps, train
from small_runs import (
    BATCH,
    DOCUMENTS,
    DROPPING,
    MEM_LEN,
    TRAINING,
    make_lanes,
    make_trainer,
    perturb,
    read_memory,
    read_variables,
    run_steps,
)

import txl_tf
from txl_tf.runs.checkpoint_files import list_checkpoints

pytestmark = pytest.mark.slow

# Segments shorter than the memory, then nearly as long; a change in the middle of a call.
STAGED = dataclasses.replace(TRAINING, tgt_len_schedule=((3, 2), (6, 3)), reset_at_documents=True)
LENGTHS = [2, 2, 2, 3, 3, 3, 5, 5, 5, 5]


@pytest.fixture(scope="module")
def staged_run(one_replica):
    """Ten steps with dropout, on documents."""
    trainer = make_trainer(one_replica, DROPPING, STAGED)
    return run_steps(trainer, [1, 5, 10], make_lanes(STAGED, DOCUMENTS)), trainer


def test_a_staged_run_equals_a_plain_loop_of_steps(staged_run):
    model = txl_tf.TransformerXL(DROPPING, seed=TRAINING.seed)
    optimizer = txl_tf.training.make_optimizer(TRAINING)
    memory, nats = model.initial_memory(BATCH, MEM_LEN), []
    # The same text in segments of the common multiple of all lengths.
    whole = make_lanes(dataclasses.replace(TRAINING, tgt_len=30), DOCUMENTS)
    (segments,), (starts,) = whole.read(0), whole.read_document_starts(0)
    first = 0
    for length in LENGTHS[:9]:  # what one of them holds
        rows = slice(first, first + length)
        result, memory = txl_tf.training.train_step(
            model,
            optimizer,
            tf.constant(segments[:, :-1][:, rows]),
            tf.constant(segments[:, 1:][:, rows]),
            memory,
            span=TRAINING.span,
            document_starts=tf.constant(starts[:, rows]),
        )
        nats.append(float(result.nats))
        first += length
    assert first == 30
    # Eager and traced operations are fused otherwise: float32 rounding over 9 steps.
    np.testing.assert_allclose(staged_run[0].nats[:9], nats, rtol=1e-4)


def test_an_interval_counts_the_tokens_of_each_step(staged_run):
    np.testing.assert_array_equal(staged_run[0].tokens, np.multiply(LENGTHS, BATCH))


def test_calls_end_where_the_length_changes(one_replica):
    trainer = make_trainer(one_replica, DROPPING, STAGED)
    lanes = make_lanes(STAGED, DOCUMENTS)
    calls = list(trainer.train(lanes, [4, 10]))
    assert [call.step for call in calls] == [3, 4, 6, 10]


def test_a_run_resumed_between_two_stages_continues_bit_for_bit(one_replica, staged_run, tmp_path):
    expected, whole = staged_run
    first, second = (make_trainer(one_replica, DROPPING, STAGED) for _ in range(2))
    lanes = make_lanes(STAGED, DOCUMENTS)
    run_steps(first, [3], lanes)
    make_checkpointer(tmp_path, first).save()
    perturb(second)
    make_checkpointer(tmp_path, second).restore()
    found = run_steps(second, [10], lanes)
    np.testing.assert_array_equal(found.nats, expected.nats[3:])
    np.testing.assert_array_equal(found.tokens, expected.tokens[3:])
    for path, value in read_variables(whole).items():
        np.testing.assert_array_equal(read_variables(second)[path], value, err_msg=path)
    np.testing.assert_array_equal(read_memory(second), read_memory(whole))


@pytest.fixture
def staged_config():
    schedule = ((2, 3), (5, 2))
    training = dataclasses.replace(CONFIG.training, tgt_len=3, tgt_len_schedule=schedule)
    return dataclasses.replace(CONFIG, training=training)


def test_log_lines_and_checkpoints_stay_at_their_steps(
    staged_config, one_replica, tmp_path, capsys
):
    records = make_records(tmp_path / "data")
    train(one_replica, records, tmp_path / "run", staged_config, iterations=3, save_steps=4)
    assert read_log_steps(tmp_path / "run") == [3, 4, 6, 7]
    assert [step for step, _ in list_checkpoints(str(tmp_path / "run"))] == [4, 7]
    assert (
        "199 tokens, an epoch of 180 takes 10 steps with segments of 3 up to step 2, "
        "15 steps with segments of 2 up to step 5, 10 steps with segments of 3\n"
    ) in capsys.readouterr().out


def test_a_staged_run_resumes_with_the_same_schedule_only(staged_config, one_replica, tmp_path):
    records = make_records(tmp_path / "data")
    train(one_replica, records, tmp_path / "run", staged_config)
    train(one_replica, records, tmp_path / "run", staged_config)  # it is done, and no other
    other = dataclasses.replace(staged_config.training, tgt_len_schedule=())
    with pytest.raises(
        txl_tf.UserError,
        match=r"tgt_len_schedule is \(\(2, 3\), \(5, 2\)\) there and \(\) here",
    ):
        train(
            one_replica,
            records,
            tmp_path / "run",
            dataclasses.replace(staged_config, training=other),
        )
