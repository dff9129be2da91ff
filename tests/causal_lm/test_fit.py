"""What `fit` and `evaluate` compute, and the memory that they carry."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_causal_lm import (
    BATCH,
    CONFIG,
    IDS,
    LENGTH,
    MEMORY,
    SPAN,
    VOCABULARY,
    make_lm,
    make_segments,
    read_memory,
    read_states,
)
from tables import slow_after

from txl_tf import CausalLM, EvalConfig, Segments, TransformerXL
from txl_tf.data.lanes.evaluation_lanes import EvaluationLanes
from txl_tf.data.lanes.training_lanes import StoredTokens
from txl_tf.scoring.evaluator import Evaluator
from txl_tf.training.step import compute_gradients

N_STEPS = 7
STARTS = [0, 11, 14]
# float32, summed in another order.
SAME = {"rtol": 0, "atol": 2e-6}


def assert_same_states(found, expected, **tolerance):
    for one, other in zip(read_states(found), read_states(expected), strict=True):
        np.testing.assert_allclose(one, other, **tolerance)


def join(segments):
    """Returns ids, targets and weights of all segments, the rows of a batch after one another."""
    batches = [segments[index] for index in range(len(segments))]
    return [np.concatenate(arrays) for arrays in zip(*batches, strict=True)]


@pytest.fixture(scope="module")
def trained():
    """A model after one epoch of plain steps, and its history."""
    lm = make_lm()
    return lm, lm.fit(make_segments(), verbose=0).history


@pytest.mark.parametrize("remat", slow_after(1, [False, True]))
def test_fit_makes_the_steps_of_the_training_programs(remat):
    lm = make_lm()
    lm.backbone.remat = remat
    model, optimizer = TransformerXL(CONFIG, seed=1), keras.optimizers.SGD(0.1)
    for weight, other in zip(model.weights, lm.backbone.weights, strict=True):
        weight.assign(other)
    segments, memory = make_segments(), model.initial_memory(BATCH, MEMORY)
    losses = []
    for index in range(N_STEPS):
        ids, targets, _ = map(tf.constant, segments[index])
        nats, gradients, memory = compute_gradients(model, ids, targets, memory, span=SPAN)
        optimizer.apply(gradients, model.trainable_variables)
        losses.append(nats / (BATCH * LENGTH))
    history = lm.fit(segments, steps_per_epoch=N_STEPS, verbose=0).history
    assert history["loss"] == [pytest.approx(np.mean(losses), rel=1e-6)]
    for one, other in zip(lm.backbone.weights, model.weights, strict=True):
        np.testing.assert_allclose(one, other, **SAME)
    for one, other in zip(read_memory(lm)[:-1], memory, strict=True):
        np.testing.assert_allclose(one, other, **SAME)


@pytest.mark.parametrize(
    "compiling",
    slow_after(
        1,
        [
            {"steps_per_execution": 4, "jit_compile": True},
            {"steps_per_execution": 4},
            {"jit_compile": True},
            {"run_eagerly": True},
        ],
    ),
)
def test_the_memory_is_carried_within_and_between_calls_of_the_device(trained, compiling):
    lm = make_lm(**compiling)
    history = lm.fit(make_segments(), verbose=0).history
    assert history["nats"] == pytest.approx(trained[1]["nats"], rel=1e-6)
    assert_same_states(lm, trained[0], **SAME)


def test_a_dataset_of_tensorflow_gives_the_same(trained):
    lm = make_lm()
    lm.fit(make_segments().to_dataset(), verbose=0)
    assert_same_states(lm, trained[0], rtol=0, atol=0)


def test_arrays_in_lanes_give_the_same(trained):
    lm = make_lm()
    ids, targets, weights = join(make_segments())
    lm.fit(ids, targets, sample_weight=weights, verbose=0)
    assert_same_states(lm, trained[0], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_ids_of_small_integers_give_the_same(dtype):
    lm = make_lm(run_eagerly=True)
    ids, targets, _ = make_segments()[0]
    expected = lm.evaluate(ids, targets, verbose=0)
    assert lm.evaluate(ids.astype(dtype), targets.astype(dtype), verbose=0) == expected
    lm.fit(ids.astype(dtype), targets.astype(dtype), verbose=0)


def test_segments_of_several_lengths_are_read_as_by_models_of_one_length():
    def read(lm, length):
        segments = make_segments(IDS[:100], length=length)
        return lm.evaluate(segments, verbose=0), lm.predict(segments, verbose=0)

    options = {"config": dataclasses.replace(CONFIG, n_layer=1), "jit_compile": False}
    lm, other = make_lm(keras.optimizers.SGD(0.0), **options), make_lm(**options)
    expected = {7: read(other, 7)}
    for length in (5, 7, 5):
        losses, log_probs = read(lm, length)
        expected_losses, expected_log_probs = expected.setdefault(length, (losses, log_probs))
        assert losses == expected_losses
        np.testing.assert_array_equal(log_probs, expected_log_probs)
        lm.fit(make_segments(IDS[:100], length=length), verbose=0)
        lm.train_on_batch(*make_segments(IDS[:100], length=12 - length)[0])


@pytest.mark.parametrize("ids", [IDS, IDS[:17]], ids=["many", "few"])
def test_evaluate_counts_each_token_once_as_txl_evaluate_does(ids):
    lm = make_lm(steps_per_execution=3)
    found = lm.evaluate(make_segments(ids), return_dict=True, verbose=0)
    config = EvalConfig(eval_batch_size=BATCH, tgt_len=LENGTH, **dataclasses.asdict(SPAN))
    lanes = EvaluationLanes(StoredTokens(ids), n_lanes=BATCH, tgt_len=LENGTH)
    score = Evaluator(lm.backbone, config, jit="none").score_lanes(lanes)
    assert score.tokens == len(ids) - 1
    nats = score.nats_per_token
    assert found["nats"] == pytest.approx(nats, rel=1e-5)
    assert found["bits"] == pytest.approx(nats / np.log(2), rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(nats), rel=1e-5)


def test_each_evaluation_begins_with_an_empty_memory_and_leaves_that_of_training():
    lm = make_lm()
    lm.fit(make_segments(), verbose=0)
    memory = read_memory(lm)
    first, second = (lm.evaluate(make_segments(), verbose=0) for _ in range(2))
    assert first == second
    for one, other in zip(read_memory(lm), memory, strict=True):
        np.testing.assert_array_equal(one, other)
    plain = make_lm()
    plain.fit(make_segments(), epochs=2, verbose=0)
    lm.fit(make_segments(), validation_data=make_segments(), verbose=0)
    assert_same_states(lm, plain, rtol=0, atol=0)


def test_the_memory_of_training_goes_on_until_it_is_reset():
    lm = make_lm(keras.optimizers.SGD(0.0))
    losses = [lm.fit(make_segments(), verbose=0).history["nats"][0] for _ in range(2)]
    assert losses[0] != losses[1]
    lm.reset_states()
    assert not any(np.any(states) for states in read_memory(lm))
    assert lm.fit(make_segments(), verbose=0).history["nats"][0] == losses[0]


def test_predict_returns_the_log_probabilities_of_the_next_tokens():
    lm, segments = make_lm(steps_per_execution=2), make_segments()
    found = lm.predict(segments, verbose=0)
    assert found.shape == (len(segments) * BATCH, LENGTH, VOCABULARY)
    np.testing.assert_allclose(np.exp(found).sum(-1), 1.0, rtol=1e-5)
    _, targets, weights = join(segments)
    nats = -np.take_along_axis(found, targets[..., None], -1)[..., 0]
    mean = (nats * weights).sum() / weights.sum()
    score = lm.evaluate(segments, return_dict=True, verbose=0)
    assert score["nats"] == pytest.approx(mean, rel=1e-5)
    np.testing.assert_array_equal(lm.predict(segments, verbose=0), found)
    lm.reset_states()
    np.testing.assert_allclose(lm.predict_on_batch(segments[0][0]), found[:BATCH], **SAME)


def test_no_document_sees_another_one():
    lm = make_lm(batch=1)
    start, stop = 60, 68
    texts = [StoredTokens(IDS, [*STARTS, start, stop]), StoredTokens(IDS[start:], [0])]
    whole, alone = (
        lm.predict(
            Segments(text, batch_size=1, tgt_len=LENGTH, document_starts=True), verbose=0
        ).reshape(-1, VOCABULARY)
        for text in texts
    )
    np.testing.assert_allclose(whole[start:stop], alone[: stop - start], **SAME)
    seeing = lm.predict(make_segments(batch=1), verbose=0).reshape(-1, VOCABULARY)
    assert np.abs(seeing - whole)[start:stop].max() > 0.01


def test_no_document_sees_the_end_of_its_lane_in_the_next_epoch():
    lm = make_lm(keras.optimizers.SGD(0.0))
    segments = Segments(
        StoredTokens(IDS, STARTS), batch_size=BATCH, tgt_len=LENGTH, document_starts=True
    )
    first, second = lm.fit(segments, epochs=2, verbose=0).history["nats"]
    assert first == second


@pytest.mark.parametrize("precision", slow_after(1, ["mixed_bfloat16", "mixed_float16"]))
def test_memory_and_states_are_16_bit_and_losses_are_not(trained, precision):
    keras.config.set_dtype_policy(precision)
    try:
        lm = make_lm()
    finally:
        keras.config.set_dtype_policy("float32")
    history = lm.fit(make_segments(), validation_data=make_segments(), verbose=0).history
    states = read_memory(lm)[: lm.backbone.config.n_layer]
    assert {each.dtype.name for each in states} == {lm.compute_dtype}
    assert lm.predict(make_segments(IDS[:40]), verbose=0).dtype == np.float32
    assert history["nats"] == pytest.approx(trained[1]["nats"], rel=0.01)


@pytest.mark.parametrize("as_dataset", [False, True])
def test_validation_has_lanes_of_its_own_also_if_arrays_train(as_dataset):
    lm = CausalLM(CONFIG, batch_size=BATCH, eval_batch_size=4, span=SPAN, seed=1)
    lm.compile("sgd")
    ids, targets, weights = join(make_segments())
    valid = make_segments(batch=4)
    data = valid.to_dataset() if as_dataset else valid
    found = lm.fit(ids, targets, sample_weight=weights, validation_data=data, verbose=0).history
    expected = lm.evaluate(valid, verbose=0, return_dict=True)["nats"]
    assert found["val_nats"] == [pytest.approx(expected)]
