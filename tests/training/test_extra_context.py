"""With `extra_len` each segment is read after the tokens before it, with gradients, no memory."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from small_jobs import make_records
from small_runs import (
    BATCH,
    DOCUMENTS,
    MODEL,
    TGT_LEN,
    TRAINING,
    make_lanes,
    make_trainer,
    run_steps,
)

import txl_tf
from txl_tf.runs.folder import RunConfig
from txl_tf.training import job

EXTRA_LEN = 7
SHALLOW = dataclasses.replace(MODEL, n_layer=1)
EXTRA = dataclasses.replace(TRAINING, extra_len=EXTRA_LEN, mem_len=0)


def differentiate(model, segment, document_starts=None):
    """Returns the summed loss and the gradients of the mean loss of the last positions."""
    ids, targets = segment[:, :-1], segment[:, 1:]
    with tf.GradientTape() as tape:
        memory = model.initial_memory(BATCH, 0)
        hidden, _ = model(ids, memory, document_starts=document_starts)
        nats = model.nll(hidden, targets)[:, EXTRA_LEN:]
        loss = tf.reduce_mean(nats)
    weights = [weight.value for weight in model.trainable_variables]
    return tf.reduce_sum(nats), [tf.convert_to_tensor(x) for x in tape.gradient(loss, weights)]


def test_a_step_is_that_on_a_longer_segment_scored_at_its_end(one_replica):
    """With documents, which hide the context before them."""
    config = dataclasses.replace(EXTRA, reset_at_documents=True)
    lanes = make_lanes(config, DOCUMENTS)
    (segment,), (starts,) = lanes.read(0), lanes.read_document_starts(0)
    assert segment.shape == (BATCH, EXTRA_LEN + TGT_LEN + 1)
    assert starts[:, :EXTRA_LEN].any()
    model = txl_tf.TransformerXL(SHALLOW, seed=TRAINING.seed)
    nats, gradients = differentiate(model, tf.constant(segment), tf.constant(starts))
    found = run_steps(make_trainer(one_replica, SHALLOW, config), [1], lanes)
    assert found.nats[0] == pytest.approx(float(nats), rel=1e-5)
    assert found.grad_norm[0] == pytest.approx(float(tf.linalg.global_norm(gradients)), rel=1e-4)
    np.testing.assert_array_equal(found.tokens, [BATCH * TGT_LEN])
    np.testing.assert_array_equal(found.n_read, [BATCH * TGT_LEN])


def test_the_context_has_gradients_where_a_memory_has_none(one_replica):
    """The steps of both see the same states before the first update."""
    segment = make_lanes(EXTRA).read(0)[0]
    model = txl_tf.TransformerXL(SHALLOW, seed=TRAINING.seed)
    context, ids = (tf.constant(x) for x in np.split(segment[:, :-1], [EXTRA_LEN], axis=1))
    _, memory = model(context, model.initial_memory(BATCH, EXTRA_LEN))
    with_memory, gradients, _ = txl_tf.training.step.compute_gradients(
        model,
        ids,
        tf.constant(segment[:, EXTRA_LEN + 1 :]),
        memory,
        span=dataclasses.replace(EXTRA, extra_len=0, mem_len=EXTRA_LEN).span,
    )
    nats, with_context = differentiate(model, tf.constant(segment))
    # The memory's first states saw an empty one, which the context does not have.
    assert float(with_memory) == pytest.approx(float(nats), rel=0.02)
    norms = [float(tf.linalg.global_norm(each)) for each in (gradients, with_context)]
    assert abs(norms[0] / norms[1] - 1) > 0.01


def test_a_memory_beside_it_is_an_error():
    with pytest.raises(
        txl_tf.UserError, match=r"`mem_len` must be 0 with `extra_len`, .*mem_len=7"
    ):
        dataclasses.replace(EXTRA, mem_len=7)


def test_learned_positions_must_cover_the_context():
    model = dataclasses.replace(MODEL, encoding="shaw", n_positions=11)
    with pytest.raises(txl_tf.UserError, match=r"extra_len \+ tgt_len = 12 .*n_positions=11"):
        RunConfig("words", model, EXTRA, txl_tf.EvalConfig())


def test_lanes_of_a_run_have_the_context(tmp_path):
    lanes = job.make_lanes(make_records(tmp_path), dataclasses.replace(EXTRA, train_batch_size=2))
    assert lanes.read(0).shape == (1, 2, EXTRA_LEN + TGT_LEN + 1)
