import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from small_runs import (
    BATCH,
    DOCUMENTS,
    DROPPING,
    MEM_LEN,
    MODEL,
    N_TOKEN,
    RESETTING,
    TEXT,
    TGT_LEN,
    TRAINING,
    Text,
    make_lanes,
    make_trainer,
    read_memory,
    read_variables,
    run_steps,
)

import txl_tf
from txl_tf.errors import UserError
from txl_tf.training.trainer import Trainer


@pytest.fixture(scope="module")
def single_run(one_replica):
    """Seven steps in one call, with dropout."""
    trainer = make_trainer(one_replica, DROPPING)
    return run_steps(trainer, [7]), trainer


def test_memory_starts_as_zeros(one_replica):
    trainer = make_trainer(one_replica)
    memory = read_memory(trainer)
    assert len(memory) == MODEL.n_layer
    for (states,) in memory:
        np.testing.assert_array_equal(states, np.zeros((BATCH, MEM_LEN, MODEL.d_model)))


def test_a_call_equals_a_plain_loop_of_steps(single_run):
    model = txl_tf.TransformerXL(DROPPING, seed=TRAINING.seed)
    optimizer = txl_tf.training.make_optimizer(TRAINING)
    memory, span = model.initial_memory(BATCH, MEM_LEN), TRAINING.span
    results = []
    for (segment,) in np.split(make_lanes().read(0, 7), 7):
        ids, targets = tf.constant(segment[:, :-1]), tf.constant(segment[:, 1:])
        result, memory = txl_tf.training.train_step(
            model, optimizer, ids, targets, memory, span=span
        )
        results.append(tf.stack(result).numpy())
    # Eager and traced operations are fused otherwise: float32 rounding over 7 steps.
    np.testing.assert_allclose(np.array(results).T, single_run[0][1:5], rtol=1e-4)
    for expected, (found,) in zip(memory, read_memory(single_run[1]), strict=True):
        # The same; hidden states are about 1.
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-3)


def test_compiled_steps_equal_uncompiled_ones(one_replica):
    table = [
        run_steps(make_trainer(one_replica, jit=jit), [5])[1:]
        for jit in ("none", "chains", "whole")
    ]
    # XLA sums in another order: float32 rounding over 5 steps.
    np.testing.assert_allclose(table[1], table[0], rtol=1e-5)
    np.testing.assert_allclose(table[2], table[0], rtol=1e-5)


def test_the_same_seed_makes_the_same_run(one_replica, single_run):
    again = run_steps(make_trainer(one_replica, DROPPING), [7])
    np.testing.assert_array_equal(again.nats, single_run[0].nats)


def test_another_seed_makes_another_run(one_replica, single_run):
    config = dataclasses.replace(TRAINING, seed=TRAINING.seed + 1)
    other = run_steps(make_trainer(one_replica, DROPPING, config), [1])
    assert other.nats[0] != single_run[0].nats[0]


def test_an_interval_tells_of_each_step(single_run):
    interval, trainer = single_run
    assert interval.step == trainer.step == 7
    np.testing.assert_array_equal(interval.tokens, np.full(7, BATCH * TGT_LEN))
    # Float32; step 0 of the warm-up has rate 0.
    expected = [float(trainer.optimizer.schedule(step)) for step in range(7)]
    np.testing.assert_allclose(interval.learning_rate, expected, rtol=1e-6)
    assert interval.learning_rate[0] == 0


@pytest.fixture(scope="module")
def resetting_run(one_replica):
    """Steps of two epochs on documents that see nothing of each other, with dropout."""
    trainer = make_trainer(one_replica, DROPPING, RESETTING)
    return run_steps(trainer, [1, 19], make_lanes(RESETTING, DOCUMENTS)), trainer


def test_resetting_steps_equal_a_plain_loop_of_steps(resetting_run):
    model = txl_tf.TransformerXL(DROPPING, seed=TRAINING.seed)
    optimizer = txl_tf.training.make_optimizer(TRAINING)
    memory, span, nats = model.initial_memory(BATCH, MEM_LEN), TRAINING.span, []
    lanes, positions = make_lanes(), make_lanes(text=Text(np.arange(len(TEXT))))
    assert lanes.steps_per_epoch < 19
    for step in range(19):
        (segment,) = lanes.read(step)
        starts = np.isin(positions.read(step)[0, :, :-1], DOCUMENTS.document_starts)
        if step == lanes.steps_per_epoch:  # the text is another one there
            memory = model.initial_memory(BATCH, MEM_LEN)
        ids, targets = tf.constant(segment[:, :-1]), tf.constant(segment[:, 1:])
        result, memory = txl_tf.training.train_step(
            model, optimizer, ids, targets, memory, span=span, document_starts=tf.constant(starts)
        )
        nats.append(float(result.nats))
    # Eager and traced operations are fused otherwise: float32 rounding over 19 steps.
    np.testing.assert_allclose(resetting_run[0].nats, nats, rtol=1e-4)


def test_resetting_changes_the_loss_of_documents(one_replica, resetting_run):
    trainer = make_trainer(one_replica, DROPPING)
    plain = run_steps(trainer, [3], make_lanes(text=DOCUMENTS))
    # The same tokens and masks, and about the same weights: the rate is still small.
    assert np.abs(plain.nats - resetting_run[0].nats[:3]).max() > 1


def test_without_resetting_documents_are_not_asked_for(one_replica, single_run):
    text = Text(TEXT.ids)
    del text.document_starts
    found = run_steps(make_trainer(one_replica, DROPPING), [7], make_lanes(text=text))
    np.testing.assert_array_equal(found.nats, single_run[0].nats)


def test_a_model_without_memory_trains(one_replica):
    config = dataclasses.replace(
        TRAINING, mem_len=0, learning_rate=0.02, train_steps=40, warmup_steps=0
    )
    text = Text(np.tile(np.arange(N_TOKEN), 30))  # each token tells the next
    nats = run_steps(make_trainer(one_replica, MODEL, config), [40], make_lanes(config, text)).nats
    assert nats[-1] < 0.5 * nats[0]


@pytest.mark.slow
@pytest.mark.parametrize("jit", ["none", "chains", "whole"])
def test_accumulated_steps_equal_those_of_the_whole_batch(jit, one_replica):
    runs = []
    for parts in (1, 3):
        config = dataclasses.replace(RESETTING, accumulate_steps=parts)
        trainer = make_trainer(one_replica, config=config, jit=jit)
        runs.append((run_steps(trainer, [9], make_lanes(config, DOCUMENTS)), read_memory(trainer)))
    (one, memory), (three, memory_of_three) = runs
    # The gradients of the parts are added up in another order: float32 rounding over 9 steps.
    np.testing.assert_allclose(three.nats, one.nats, rtol=1e-5)
    np.testing.assert_allclose(three.grad_norm, one.grad_norm, rtol=1e-4)
    np.testing.assert_allclose(memory_of_three, memory, atol=1e-4)


def test_parts_of_a_batch_drop_different_entries(one_replica):
    # The same lane six times: without dropout all parts would have one loss.
    same = Text(np.tile(TEXT.ids[:61], 20))
    config = dataclasses.replace(TRAINING, accumulate_steps=2, train_steps=3)
    seen = []
    trainer = make_trainer(one_replica, DROPPING, config)
    compute = trainer.compute_gradients
    segment = np.repeat(make_lanes(config, same).read(0)[:, :1], BATCH, axis=1)

    def watch(*args, **kwargs):
        result = compute(*args, **kwargs)
        seen.append(result[0])
        return result

    result, _ = txl_tf.training.train_step(
        trainer.model,
        trainer.optimizer,
        tf.constant(segment[0, :, :-1]),
        tf.constant(segment[0, :, 1:]),
        trainer.model.initial_memory(BATCH, MEM_LEN),
        span=config.span,
        accumulate_steps=2,
        compute=watch,
    )
    assert float(seen[0]) != float(seen[1])
    np.testing.assert_allclose(float(seen[0] + seen[1]), float(result.nats), rtol=1e-6)


def test_lanes_that_cannot_be_divided_into_parts_are_refused(two_replicas):
    config = dataclasses.replace(TRAINING, accumulate_steps=2)
    with pytest.raises(UserError, match="3 lanes a replica, accumulate_steps=2"):
        make_trainer(two_replicas, config=config)


@pytest.mark.slow
@pytest.mark.parametrize("jit", ["none", "chains", "whole"])
def test_bfloat16_trains_nearly_as_float32(jit, one_replica):
    runs = {}
    for precision in ("float32", "bfloat16"):
        config = dataclasses.replace(TRAINING, precision=precision, learning_rate=1e-2)
        trainer = make_trainer(one_replica, config=config, jit=jit)
        runs[precision] = run_steps(trainer, [21]).nats
        assert all(weight.dtype == "float32" for weight in trainer.model.weights)
        assert trainer.memory.gather()[0].dtype.name == precision
    # bfloat16 has 8 bits: 0.4 percent.
    np.testing.assert_allclose(runs["bfloat16"], runs["float32"], rtol=0.01)


def spoil(trainer, *, steps, nats=True):
    """Lets gradients, and maybe losses, of some steps be not finite."""
    compute = trainer.compute_gradients

    def spoiled(model, ids, targets, memory, **kwargs):
        loss, gradients, memory = compute(model, ids, targets, memory, **kwargs)
        is_bad = tf.reduce_any(trainer.optimizer.iterations.value == tf.constant(steps, tf.int64))
        factor = tf.where(is_bad, np.nan, 1.0)
        memory = tuple(states * (factor if nats else 1.0) for states in memory)
        return loss * (factor if nats else 1.0), [factor * grad for grad in gradients], memory

    trainer.compute_gradients = spoiled


def test_a_step_that_is_not_finite_changes_nothing_but_the_count(one_replica):
    trainer = make_trainer(one_replica)
    run_steps(trainer, [4])
    before, memory = read_variables(trainer), read_memory(trainer)
    spoil(trainer, steps=[4, 5])
    interval = run_steps(trainer, [6])
    after = read_variables(trainer)
    assert after.pop("adam/iteration") == before.pop("adam/iteration") + 2 == trainer.step
    for path in before:
        np.testing.assert_array_equal(after[path], before[path], err_msg=path)
    np.testing.assert_array_equal(read_memory(trainer), memory)
    assert not interval.is_good.any()


def test_steps_after_one_that_is_not_finite_are_made(two_replicas):
    trainer = make_trainer(two_replicas)
    spoil(trainer, steps=[2])
    interval = run_steps(trainer, [5])
    assert interval.is_good.tolist() == [True, True, False, True, True]
    assert np.isfinite(interval.nats[3:]).all()


def test_the_memory_of_a_finite_loss_is_kept_though_its_step_is_skipped(one_replica):
    trainer, other = make_trainer(one_replica), make_trainer(one_replica)
    spoil(trainer, steps=[0], nats=False)
    run_steps(trainer, [1])
    run_steps(other, [1])  # its memory is of the same initial weights
    np.testing.assert_array_equal(read_memory(trainer), read_memory(other))


def test_calls_are_split_to_take_about_as_long_as_they_may(one_replica):
    trainer = make_trainer(one_replica)
    calls = list(trainer.train(make_lanes(), [9, 13], call_seconds=1e-9))
    assert [call.step for call in calls] == list(range(1, 14))
    assert trainer.run_steps.experimental_get_tracing_count() == 1


def test_steps_take_the_seconds_of_training_alone(one_replica, monkeypatch):
    clock, run = [0.0], Trainer.run

    def run_for_six_seconds(*args, **kwargs):
        clock[0] += 6.0
        return run(*args, **kwargs)

    monkeypatch.setattr("txl_tf.training.trainer.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(Trainer, "run", run_for_six_seconds)
    trainer, found = make_trainer(one_replica), []
    for interval in trainer.train(make_lanes(), [2, 5, 7]):
        found.append(interval.seconds.tolist())
        clock[0] += 1000.0  # an evaluation
    # The first call is compiled, which says nothing of the speed.
    assert found == [[pytest.approx(np.nan, nan_ok=True)] * 2, [2.0] * 3, [3.0] * 2]
