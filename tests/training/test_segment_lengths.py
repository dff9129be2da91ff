"""Segments of other lengths, with context before or a loss at the end alone: steps by hand."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from small_runs import (
    BATCH,
    CONFIG,
    DOCUMENTS,
    DROPPING,
    MEM_LEN,
    MODEL,
    TGT_LEN,
    TRAINING,
    make_lanes,
    make_records,
    make_trainer,
    read_log_steps,
    run_steps,
    train,
)
from tables import slow_after

import txl_tf
from txl_tf.runs.checkpoint_choice import list_checkpoints
from txl_tf.runs.folder import RunConfig
from txl_tf.training import job
from txl_tf.training.schedule import make_schedule
from txl_tf.training.step import compute_gradients

SHALLOW = dataclasses.replace(MODEL, n_layer=1)
# Segments shorter than the memory, then nearly as long; a change in the middle of a call.
STAGED = dataclasses.replace(TRAINING, tgt_len_schedule=((3, 2), (6, 3)), reset_at_documents=True)
LENGTHS = [2, 2, 2, 3, 3, 3, 5, 5, 5, 5]
EXTRA_LEN = 7
EXTRA = dataclasses.replace(TRAINING, extra_len=EXTRA_LEN, mem_len=0)
RANDOM = dataclasses.replace(
    EXTRA, tgt_len=11, tgt_len_std=1.0, half_len_rate=0.5, extra_len=3, ar=0.7, tar=1.3
)


@pytest.mark.slow
def test_a_staged_run_equals_a_plain_loop_of_steps(one_replica):
    """Ten steps with dropout, on documents."""
    config = dataclasses.replace(DROPPING, n_layer=1)
    trainer = make_trainer(one_replica, config, STAGED)
    staged = run_steps(trainer, [1, 5, 10], make_lanes(STAGED, DOCUMENTS))
    np.testing.assert_array_equal(staged.tokens, np.multiply(LENGTHS, BATCH))
    model = txl_tf.TransformerXL(config, seed=TRAINING.seed)
    optimizer = txl_tf.training.make_optimizer(TRAINING)
    memory, nats = model.initial_memory(BATCH, MEM_LEN, mask_empty=True), []
    # The same text in segments of the common multiple of all lengths.
    whole = make_lanes(dataclasses.replace(TRAINING, tgt_len=30), DOCUMENTS)
    (segments,), (starts,) = whole.read(0), whole.read_document_starts(0)
    train_step = txl_tf.training.TrainStep(model, optimizer)
    first = 0
    for length in LENGTHS[:9]:  # what one of them holds
        rows = slice(first, first + length)
        result, memory = train_step(
            tf.constant(segments[:, :-1][:, rows]),
            tf.constant(segments[:, 1:][:, rows]),
            memory,
            document_starts=tf.constant(starts[:, rows]),
        )
        nats.append(float(result.nats))
        first += length
    assert first == 30
    # Eager and traced operations are fused otherwise: float32 rounding over 9 steps.
    np.testing.assert_allclose(staged.nats[:9], nats, rtol=1e-4)


def test_stages_leave_log_lines_and_checkpoints_at_their_steps(one_replica, tmp_path, capsys):
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


def differentiate(model, segment, first, document_starts=None):
    """Returns the summed loss from a position on, and the gradients of its mean."""
    ids, targets = segment[:, :-1], segment[:, 1:]
    with tf.GradientTape() as tape:
        memory = model.initial_memory(BATCH, 0)
        hidden, _ = model(ids, memory, document_starts=document_starts)
        nats = model.nll(hidden, targets)[:, first:]
        loss = tf.reduce_mean(nats)
    weights = [weight.value for weight in model.trainable_variables]
    return tf.reduce_sum(nats), [tf.convert_to_tensor(x) for x in tape.gradient(loss, weights)]


@pytest.mark.parametrize("half_loss", slow_after(1, [True, False]))
def test_a_step_is_that_on_a_longer_segment_scored_at_its_end(half_loss, one_replica):
    """With documents, which hide the context before them."""
    config = dataclasses.replace(EXTRA, reset_at_documents=True, half_loss=half_loss)
    lanes = make_lanes(config, DOCUMENTS)
    (segment,), (starts,) = lanes.read(0), lanes.read_document_starts(0)
    assert segment.shape == (BATCH, EXTRA_LEN + TGT_LEN + 1)
    assert starts[:, :EXTRA_LEN].any()
    model = txl_tf.TransformerXL(SHALLOW, seed=TRAINING.seed)
    n_scored = TGT_LEN - TGT_LEN // 2 if half_loss else TGT_LEN
    first = EXTRA_LEN + TGT_LEN - n_scored
    nats, gradients = differentiate(model, tf.constant(segment), first, tf.constant(starts))
    found = run_steps(make_trainer(one_replica, SHALLOW, config), [1], lanes)
    assert found.nats[0] == pytest.approx(float(nats), rel=1e-5)
    assert found.grad_norm[0] == pytest.approx(float(tf.linalg.global_norm(gradients)), rel=1e-4)
    np.testing.assert_array_equal(found.tokens, [BATCH * n_scored])
    np.testing.assert_array_equal(found.n_read, [BATCH * TGT_LEN])


def test_the_context_has_gradients_where_a_memory_has_none():
    """The steps of both see the same states before the first update."""
    segment = make_lanes(EXTRA).read(0)[0]
    model = txl_tf.TransformerXL(SHALLOW, seed=TRAINING.seed)
    context, ids = (tf.constant(x) for x in np.split(segment[:, :-1], [EXTRA_LEN], axis=1))
    _, memory = model(context, model.initial_memory(BATCH, EXTRA_LEN))
    with_memory, gradients, _ = compute_gradients(
        model,
        ids,
        tf.constant(segment[:, EXTRA_LEN + 1 :]),
        memory,
        span=dataclasses.replace(EXTRA, extra_len=0, mem_len=EXTRA_LEN).span,
    )
    nats, with_context = differentiate(model, tf.constant(segment), EXTRA_LEN)
    # The memory's first states saw an empty one, which the context does not have.
    assert float(with_memory) == pytest.approx(float(nats), rel=0.02)
    norms = [float(tf.linalg.global_norm(each)) for each in (gradients, with_context)]
    assert abs(norms[0] / norms[1] - 1) > 0.01


def test_lanes_of_a_run_have_the_context(tmp_path):
    lanes = job.make_lanes(make_records(tmp_path), dataclasses.replace(EXTRA, train_batch_size=2))
    assert lanes.read(0).shape == (1, 2, EXTRA_LEN + TGT_LEN + 1)


@pytest.mark.slow
def test_steps_of_random_lengths_are_those_of_segments_cut_by_hand(one_replica):
    """Losses, penalties, learning rates and updates."""
    n_steps, extra_len = 5, RANDOM.extra_len
    lanes = make_lanes(RANDOM)
    lengths = lanes.read_lengths(0, n_steps)
    assert len(set(lengths)) > 2
    model = txl_tf.TransformerXL(SHALLOW, seed=RANDOM.seed)
    optimizer, schedule = txl_tf.training.make_optimizer(RANDOM), make_schedule(RANDOM)
    nats, rates = [], []
    for step, length in enumerate(lengths):
        segment = tf.constant(lanes.read(step)[0][:, : extra_len + length + 1])
        assert segment.shape[1] == extra_len + length + 1
        total, gradients, _ = compute_gradients(
            model,
            segment[:, :-1],
            segment[:, 1:],
            model.initial_memory(BATCH, 0),
            span=RANDOM.span,
            loss_start=extra_len,
            ar=RANDOM.ar,
            tar=RANDOM.tar,
        )
        factor = length / RANDOM.tgt_len
        optimizer.apply(
            gradients, model.trainable_variables, rate_factor=tf.constant(factor, "float32")
        )
        nats.append(float(total))
        rates.append(float(schedule(step)) * factor)
    trainer = make_trainer(one_replica, SHALLOW, RANDOM)
    found = run_steps(trainer, [n_steps])
    np.testing.assert_array_equal(found.tokens, BATCH * lengths)
    np.testing.assert_array_equal(found.n_read, BATCH * lengths)
    # Sums over padded positions are rounded in another order, over some steps.
    np.testing.assert_allclose(found.nats, nats, rtol=1e-4)
    np.testing.assert_allclose(found.learning_rate, rates, rtol=1e-5)
    for weight, expected in zip(
        trainer.model.trainable_variables, model.trainable_variables, strict=True
    ):
        np.testing.assert_allclose(weight, expected, rtol=0, atol=2e-5, err_msg=weight.path)


@pytest.mark.slow
def test_parts_of_random_lengths_make_the_step_of_the_whole_batch(one_replica):
    """Each part has the share of its tokens that have a loss."""
    plain, found = (
        run_steps(make_trainer(one_replica, SHALLOW, config), [4])
        for config in (RANDOM, dataclasses.replace(RANDOM, accumulate_steps=2))
    )
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    np.testing.assert_allclose(found.nats, plain.nats, rtol=1e-5)
    np.testing.assert_allclose(found.grad_norm, plain.grad_norm, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "fields", "message"),
    [
        (EXTRA, {"mem_len": 7}, r"`mem_len` must be 0 with `extra_len`, .*mem_len=7"),
        (RANDOM, {"mem_len": 3, "extra_len": 0}, r"`mem_len` must be 0 with random segment .*=3"),
        (RANDOM, {"half_loss": True}, r"`half_loss` must be false with random segment lengths"),
        (RANDOM, {"tgt_len_schedule": ((2, 11),)}, r"`tgt_len_schedule` must be empty with random"),
        (RANDOM, {"tgt_len_std": 1.5}, r"`tgt_len` must leave every .* tgt_len=11, tgt_len_std=1."),
    ],
)
def test_lengths_that_cannot_be_together_are_an_error(config, fields, message):
    with pytest.raises(txl_tf.UserError, match=message):
        dataclasses.replace(config, **fields)


LSTM = txl_tf.ModelConfig(n_token=23, model_type="lstm")
SHAW = dataclasses.replace(MODEL, encoding="shaw", n_positions=11)
FIXED = dataclasses.replace(RANDOM, extra_len=0)


@pytest.mark.parametrize(
    ("model", "training", "message"),
    [
        (LSTM, EXTRA, r"`extra_len` must be 0 with model_type=lstm.*extra_len=7"),
        (LSTM, FIXED, r"`tgt_len_std` must be 0 with model_type=lstm.*=1"),
        (SHAW, EXTRA, r"extra_len \+ tgt_len = 12 .*n_positions=11"),
    ],
)
def test_lengths_that_a_model_cannot_read_are_an_error(model, training, message):
    with pytest.raises(txl_tf.UserError, match=message):
        RunConfig("words", model, training, txl_tf.EvalConfig(mem_len=0))
