"""Runs whose segments change their length: the steps are those of a loop by hand."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from small_jobs import CONFIG, make_records, read_log_steps, train
from small_runs import (
    BATCH,
    DOCUMENTS,
    DROPPING,
    MEM_LEN,
    TRAINING,
    make_lanes,
    make_trainer,
    run_steps,
)

import txl_tf
from txl_tf.runs.checkpoint_files import list_checkpoints

# Segments shorter than the memory, then nearly as long; a change in the middle of a call.
STAGED = dataclasses.replace(TRAINING, tgt_len_schedule=((3, 2), (6, 3)), reset_at_documents=True)
LENGTHS = [2, 2, 2, 3, 3, 3, 5, 5, 5, 5]
MODEL = dataclasses.replace(DROPPING, n_layer=1)


@pytest.mark.slow
def test_a_staged_run_equals_a_plain_loop_of_steps(one_replica):
    """Ten steps with dropout, on documents."""
    trainer = make_trainer(one_replica, MODEL, STAGED)
    staged = run_steps(trainer, [1, 5, 10], make_lanes(STAGED, DOCUMENTS))
    np.testing.assert_array_equal(staged.tokens, np.multiply(LENGTHS, BATCH))
    model = txl_tf.TransformerXL(MODEL, seed=TRAINING.seed)
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
    np.testing.assert_allclose(staged.nats[:9], nats, rtol=1e-4)


def test_log_lines_and_checkpoints_stay_at_their_steps(one_replica, tmp_path, capsys):
    schedule = ((2, 3), (5, 2))
    training = dataclasses.replace(CONFIG.training, tgt_len=3, tgt_len_schedule=schedule)
    config = dataclasses.replace(CONFIG, training=training)
    records = make_records(tmp_path / "data")
    train(one_replica, records, tmp_path / "run", config, iterations=3, save_steps=4)
    assert read_log_steps(tmp_path / "run") == [3, 4, 6, 7]
    assert [step for step, _ in list_checkpoints(str(tmp_path / "run"))] == [4, 7]
    assert (
        "199 tokens, an epoch of 180 takes 10 steps with segments of 3 up to step 2, "
        "15 steps with segments of 2 up to step 5, 10 steps with segments of 3\n"
    ) in capsys.readouterr().out
