"""The steps of a run, against the same steps computed in another way."""

import dataclasses
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from small_runs import (
    BATCH,
    DOCUMENTS,
    DROPPING,
    MEM_LEN,
    MODEL,
    RESETTING,
    TEXT,
    TGT_LEN,
    TRAINING,
    Text,
    make_lanes,
    make_trainer,
    read_memory,
    read_variables,
    run_calls,
    run_steps,
)
from tables import slow_after

import txl_tf
from txl_tf.errors import UserError

SHALLOW = dataclasses.replace(MODEL, n_layer=1)
SHALLOW_DROPPING = dataclasses.replace(DROPPING, n_layer=1)


def test_a_call_equals_a_plain_loop_of_steps(one_replica):
    """Two epochs of documents that see nothing of each other, with dropout."""
    n_steps, n_tokens = 6, 131
    starts = DOCUMENTS.document_starts
    trainer = make_trainer(one_replica, SHALLOW_DROPPING, RESETTING)
    text = Text(TEXT.ids[:n_tokens], starts[starts < n_tokens])
    interval = run_steps(trainer, [1, n_steps], make_lanes(RESETTING, text))
    model = txl_tf.TransformerXL(SHALLOW_DROPPING, seed=TRAINING.seed)
    optimizer = txl_tf.training.make_optimizer(TRAINING)
    train_step = txl_tf.training.TrainStep(model, optimizer)
    memory, results = model.initial_memory(BATCH, MEM_LEN, True), []
    lanes, positions = make_lanes(text=text), make_lanes(text=Text(np.arange(n_tokens)))
    assert 1 < lanes.steps_per_epoch < n_steps
    for step in range(n_steps):
        (segment,) = lanes.read(step)
        is_start = np.isin(positions.read(step)[0, :, :-1], starts)
        if step == lanes.steps_per_epoch:  # the text is another one there
            memory = model.initial_memory(BATCH, MEM_LEN, True)
        ids, targets = tf.constant(segment[:, :-1]), tf.constant(segment[:, 1:])
        result, memory = train_step(ids, targets, memory, document_starts=tf.constant(is_start))
        results.append(tf.stack(result).numpy())
    assert interval.step == trainer.step == n_steps
    np.testing.assert_array_equal(interval.tokens, np.full(n_steps, BATCH * TGT_LEN))
    # Eager and traced operations are fused otherwise: float32 rounding over the steps.
    np.testing.assert_allclose(np.array(results).T, interval[1:5], rtol=1e-4)
    for expected, (found,) in zip(memory, read_memory(trainer), strict=True):
        # The same; hidden states are about 1.
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-3)


@pytest.mark.parametrize("jit", slow_after(1, ["whole", "chains"]))
def test_compiled_steps_equal_uncompiled_ones(jit, one_replica):
    found, expected = (
        run_steps(make_trainer(one_replica, SHALLOW, jit=each), [5])[1:] for each in (jit, "none")
    )
    # XLA sums in another order: float32 rounding over 5 steps.
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
def test_compiled_replicas_make_the_steps_of_one(one_replica, two_replicas):
    """With the memory of their own lanes, which documents empty."""
    lanes = make_lanes(RESETTING, DOCUMENTS)
    trainers = [
        make_trainer(one_replica, SHALLOW, RESETTING),
        make_trainer(two_replicas, SHALLOW, RESETTING, jit="whole"),
    ]
    one, two = (run_steps(trainer, [3, 7], lanes) for trainer in trainers)
    # Sums in another order, float32, carried through the steps.
    np.testing.assert_allclose(two.nats, one.nats, rtol=1e-5)
    np.testing.assert_allclose(two.grad_norm, one.grad_norm, rtol=1e-5)
    (states, filled), (other_states, other_filled) = (
        [np.concatenate(parts) for parts in read_memory(trainer)] for trainer in trainers
    )
    assert 0 < filled.min() < MEM_LEN  # a document has begun
    np.testing.assert_array_equal(other_filled, filled)
    np.testing.assert_allclose(other_states, states, atol=1e-3)


# float16 has 11 bits, bfloat16 8: 0.4 percent; the steps carry what they round off. The norm adds
# up the errors of all gradients. Not compiled: XLA takes minutes over float16 on some CPUs.
@pytest.mark.parametrize("precision", slow_after(1, ["float16", "bfloat16"]))
def test_half_precision_trains_nearly_as_float32(precision, one_replica):
    model = dataclasses.replace(SHALLOW, cutoffs=(13,), div_val=2)
    config = dataclasses.replace(TRAINING, precision=precision, learning_rate=1e-2)
    trainer = make_trainer(one_replica, model, config)
    half = run_steps(trainer, [21])
    config = dataclasses.replace(config, precision="float32")
    whole = run_steps(make_trainer(one_replica, model, config), [21])
    np.testing.assert_allclose(half.nats, whole.nats, rtol=0.01)
    is_good = half.is_good  # float16 may skip some
    np.testing.assert_allclose(half.grad_norm[is_good], whole.grad_norm[is_good], rtol=0.05)
    assert trainer.memory.gather()[0].dtype == precision
    assert all(weight.dtype == "float32" for weight in trainer.model.weights)


def test_accumulated_steps_equal_those_of_the_whole_batch(one_replica):
    runs = []
    for parts in (1, 3):
        config = dataclasses.replace(RESETTING, accumulate_steps=parts)
        trainer = make_trainer(one_replica, SHALLOW, config)
        runs.append((run_steps(trainer, [7], make_lanes(config, DOCUMENTS)), read_memory(trainer)))
    (one, memory), (three, memory_of_three) = runs
    # The gradients of the parts are added up in another order: float32 rounding over the steps.
    np.testing.assert_allclose(three.nats, one.nats, rtol=1e-5)
    np.testing.assert_allclose(three.grad_norm, one.grad_norm, rtol=1e-4)
    for found, expected in zip(memory_of_three, memory, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.slow
def test_a_run_with_remat_makes_the_steps_of_one_without(one_replica):
    """With dropout, in parts of a batch: its masks must be those of the first pass."""
    runs = []
    for remat in (False, True):
        config = dataclasses.replace(RESETTING, accumulate_steps=2, remat=remat)
        trainer = make_trainer(one_replica, SHALLOW_DROPPING, config)
        assert trainer.model.remat is remat
        runs.append(run_steps(trainer, [4], make_lanes(config, DOCUMENTS)))
    # Other masks would change the losses by percents.
    np.testing.assert_allclose(runs[1].nats, runs[0].nats, rtol=1e-5)
    np.testing.assert_allclose(runs[1].grad_norm, runs[0].grad_norm, rtol=1e-4)


def test_parts_of_a_batch_drop_different_entries(one_replica):
    # The same lane six times: without dropout all parts would have one loss.
    same = Text(np.tile(TEXT.ids[:61], 20))
    config = dataclasses.replace(TRAINING, accumulate_steps=2, train_steps=3)
    seen = []
    trainer = make_trainer(one_replica, SHALLOW_DROPPING, config)
    compute = trainer.train_step.compute
    segment = np.repeat(make_lanes(config, same).read(0)[:, :1], BATCH, axis=1)

    def watch(*args, **kwargs):
        result = compute(*args, **kwargs)
        seen.append(result[0])
        return result

    trainer.train_step.compute = watch
    result, _ = trainer.train_step(
        tf.constant(segment[0, :, :-1]),
        tf.constant(segment[0, :, 1:]),
        trainer.model.initial_memory(BATCH, MEM_LEN),
    )
    assert float(seen[0]) != float(seen[1])
    np.testing.assert_allclose(float(seen[0] + seen[1]), float(result.nats), rtol=1e-6)


def test_replicas_and_steps_drop_different_entries(two_replicas):
    """Every lane reads the same token over and over, so that only the masks differ."""
    config = dataclasses.replace(TRAINING, mem_len=2 * TGT_LEN)
    trainer = make_trainer(two_replicas, SHALLOW_DROPPING, config)
    run_steps(trainer, [2], make_lanes(config, Text(np.full(97, 13))))
    zeros = np.array(read_memory(trainer)[0]) == 0  # (R, B/R, 2 T, D)
    zeros = zeros.reshape(2, BATCH // 2, 2, TGT_LEN, MODEL.d_model)
    assert 0 < zeros.mean() < 1
    # Independent masks with rate .3 differ in 42% of the entries.
    assert (zeros[0] != zeros[1]).mean(axis=(0, 2, 3)).min() > 0.2  # in both steps
    assert (zeros[:, :, 0] != zeros[:, :, 1]).mean(axis=(1, 2, 3)).min() > 0.2  # on both replicas


def test_lanes_that_cannot_be_divided_into_parts_are_refused(two_replicas):
    config = dataclasses.replace(TRAINING, accumulate_steps=2)
    with pytest.raises(UserError, match="3 lanes a replica, accumulate_steps=2"):
        make_trainer(two_replicas, config=config)


def spoil(trainer, steps):
    """Lets losses and gradients of some steps be not finite."""
    compute = trainer.train_step.compute

    def spoiled(model, ids, targets, memory, **kwargs):
        loss, gradients, memory = compute(model, ids, targets, memory, **kwargs)
        is_bad = tf.reduce_any(trainer.optimizer.iterations.value == tf.constant(steps, tf.int64))
        factor = tf.where(is_bad, np.nan, 1.0)
        memory = tuple(states * factor for states in memory)
        return loss * factor, [factor * gradient for gradient in gradients], memory

    trainer.train_step.compute = spoiled


def test_a_step_that_is_not_finite_changes_nothing_but_the_count(two_replicas):
    trainer = make_trainer(two_replicas, SHALLOW)
    spoil(trainer, [2, 3])
    run_steps(trainer, [2])
    before, memory = read_variables(trainer), read_memory(trainer)
    assert not run_steps(trainer, [4]).is_good.any()
    after = read_variables(trainer)
    assert after.pop("adam/iteration") == before.pop("adam/iteration") + 2 == trainer.step
    for path in before:
        np.testing.assert_array_equal(after[path], before[path], err_msg=path)
    np.testing.assert_array_equal(read_memory(trainer), memory)
    assert run_steps(trainer, [6]).is_good.all()


def test_steps_take_the_seconds_of_training_alone(one_replica, monkeypatch):
    trainer, found, clock = make_trainer(one_replica, SHALLOW), [], [0.0]
    run, wait = trainer.run_steps, Future.result

    def wait_for_three_seconds(future):  # for segments
        clock[0] += 3.0
        return wait(future)

    def run_for_six_seconds(*args):
        result = run(*args)

        def finish():
            clock[0] += 6.0
            return result.numpy()

        return SimpleNamespace(numpy=finish)

    monkeypatch.setattr("txl_tf.training.trainer.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(Future, "result", wait_for_three_seconds)
    monkeypatch.setattr(trainer, "run_steps", run_for_six_seconds)
    for interval in run_calls(trainer, [2, 5, 7]):
        found.append(interval.seconds.tolist())
        clock[0] += 1000.0  # an evaluation
    # The first call is compiled, which says nothing of the speed.
    assert found == [[pytest.approx(np.nan, nan_ok=True)] * 2, [3.0] * 3, [4.5] * 2]
