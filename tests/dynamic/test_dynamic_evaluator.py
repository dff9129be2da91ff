import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from small_cached_model import make_model
from small_lstm import make_model as make_lstm
from small_runs import Text

from txl_tf.config import EvalConfig
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.dynamic.adapting_model import DivergedError
from txl_tf.dynamic.evaluator import DynamicEvaluator
from txl_tf.errors import UserError
from txl_tf.evaluation.evaluator import Evaluator

pytestmark = pytest.mark.slow

TEXT = Text(np.random.default_rng(3).integers(0, 13, 97), [0, 17, 31, 60])
CONFIG = EvalConfig(tgt_len=5, mem_len=7, same_length=True, eval_batch_size=1)
SGD = DynamicConfig("sgd", 0.05, 0.01)


def make_evaluator(model, dynamic=SGD, config=CONFIG, **options):
    return DynamicEvaluator(model, config, dynamic, **options)


def list_weights(model):
    return [weight.numpy() for weight in model.weights]


def assert_same(weights, others):
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("n_lanes", [1, 3])
def test_without_a_learning_rate_it_is_the_static_evaluation(n_lanes):
    config = dataclasses.replace(CONFIG, eval_batch_size=n_lanes)
    static = Evaluator(make_model(), config).score(TEXT)
    assert make_evaluator(make_model(), DynamicConfig("sgd", 0.0), config).score(TEXT) == static


@pytest.mark.parametrize("make", [make_model, make_lstm], ids=["transformer", "lstm"])
@pytest.mark.parametrize("n_lanes", [1, 3])
def test_with_steps_of_nothing_it_is_the_static_evaluation(make, n_lanes):
    span = {} if make is make_model else {"mem_len": 0, "same_length": False}
    config = dataclasses.replace(CONFIG, eval_batch_size=n_lanes, **span)
    static = Evaluator(make(), config).score(TEXT)
    dynamic = make_evaluator(make(), DynamicConfig("sgd", 1e-30, 0.0), config).score(TEXT)
    assert dynamic.tokens == static.tokens
    assert dynamic.total_nats == pytest.approx(static.total_nats, rel=1e-6)


def test_documents_are_told_apart():
    config = dataclasses.replace(CONFIG, reset_at_documents=True)
    static = Evaluator(make_model(), config).score(TEXT)
    dynamic = make_evaluator(make_model(), DynamicConfig("sgd", 1e-30, 0.0), config).score(TEXT)
    assert dynamic.total_nats == pytest.approx(static.total_nats, rel=1e-6)
    together = Evaluator(make_model(), CONFIG).score(TEXT)
    assert together.total_nats != pytest.approx(static.total_nats, rel=1e-4)


def test_a_text_that_repeats_itself_is_learnt():
    text = Text(np.tile(TEXT.ids[:23], 20))
    model = make_model()
    static = Evaluator(model, CONFIG).score(text)
    dynamic = make_evaluator(model).score(text)
    assert dynamic.nats_per_token < static.nats_per_token - 0.3


def test_the_model_keeps_its_weights_and_every_evaluation_begins_with_them():
    model = make_model()
    before = list_weights(model)
    evaluator = make_evaluator(model)
    first = evaluator.score(TEXT)
    assert_same(list_weights(model), before)
    assert evaluator.score(TEXT) == first
    model.weights[2].assign(0 * model.weights[2])
    assert evaluator.score(TEXT) != first


def test_nothing_is_learnt_from_what_warms_a_lane():
    config = dataclasses.replace(CONFIG, eval_batch_size=3)
    evaluator = make_evaluator(make_model(), config=config)
    lanes = evaluator.cut_lanes(TEXT)
    assert lanes.n_warm
    evaluator.score_lanes(lanes, max_segments=0)
    adapting = evaluator.adapting
    assert_same(list_weights(adapting.model), list_weights(evaluator.model))
    evaluator.score_lanes(lanes, max_segments=1)
    assert (adapting.model.weights[2].numpy() != evaluator.model.weights[2].numpy()).any()


class InterruptedEvaluationError(Exception):
    pass


def interrupt(evaluator, lanes, after):
    def stop(done, *_):
        if done == after:
            raise InterruptedEvaluationError

    with pytest.raises(InterruptedEvaluationError):
        evaluator.score_lanes(lanes, report=stop)


def test_an_interrupted_evaluation_goes_on_where_it_was(tmp_path):
    vocabulary = Vocabulary("word", tuple(f"w{index}" for index in range(13)))
    model, options = make_model(), {"vocabulary": vocabulary}
    expected = make_evaluator(model, **options).score(TEXT)
    options |= {"folder": str(tmp_path), "save_seconds": 0.0}
    evaluator = make_evaluator(model, **options)
    interrupt(evaluator, evaluator.cut_lanes(TEXT), after=9)
    resumed = make_evaluator(model, **options)
    seen = []
    found = resumed.score_lanes(
        resumed.cut_lanes(TEXT), report=lambda done, total, score: seen.append(done)
    )
    assert seen[0] == 9  # the eighth was the last that was stored
    assert found == expected
    assert not list(tmp_path.iterdir())


def test_an_interrupted_evaluation_in_bfloat16_goes_on(tmp_path):
    model = make_model(dtype="mixed_bfloat16")
    expected = make_evaluator(model).score(TEXT)
    options = {"folder": str(tmp_path), "save_seconds": 0.0}
    evaluator = make_evaluator(model, **options)
    interrupt(evaluator, evaluator.cut_lanes(TEXT), after=9)
    resumed = make_evaluator(model, **options)
    assert resumed.score(TEXT) == expected
    assert resumed.n_resumed_tokens == 8 * CONFIG.tgt_len


@pytest.mark.parametrize("changed", ["weights", "text", "rate", "lanes", "dtype"])
def test_another_evaluation_begins_anew(changed, tmp_path):
    model, text, rates, n_lanes = make_model(), TEXT, SGD, 1
    options = {"folder": str(tmp_path), "save_seconds": 0.0}
    evaluator = make_evaluator(model, **options)
    interrupt(evaluator, evaluator.cut_lanes(TEXT), after=9)
    if changed == "weights":
        model.weights[0].assign(2 * model.weights[0])
    if changed == "dtype":
        model = make_model(dtype="mixed_bfloat16")
    if changed == "text":
        text = Text(np.append(TEXT.ids[:-1], 0))
    if changed == "rate":
        rates = dataclasses.replace(SGD, learning_rate=0.04)
    if changed == "lanes":
        n_lanes = 2
    config = dataclasses.replace(CONFIG, eval_batch_size=n_lanes)
    again, seen = make_evaluator(model, rates, config, **options), []
    again.score_lanes(again.cut_lanes(text), report=lambda done, *_: seen.append(done))
    assert seen[0] == 1


def test_a_search_is_found_whatever_its_rates(tmp_path):
    evaluator = make_evaluator(make_model(), folder=str(tmp_path))
    lanes = evaluator.cut_lanes(TEXT)
    evaluator.open_search(lanes, None).save("trials", {})
    evaluator.set_rates(0.03, 0.2)
    assert evaluator.open_search(lanes, None).load("trials") == {}
    assert evaluator.open_search(lanes, 3).load("trials") is None
    other = make_evaluator(make_model(), DynamicConfig("sgd"), folder=str(tmp_path))
    assert other.open_search(lanes, None).load("trials") == {}
    other.model.weights[0].assign(2 * other.model.weights[0])
    assert other.open_search(lanes, None).load("trials") is None


def test_weights_that_diverge_are_an_error():
    with pytest.raises(DivergedError, match=r"the weights diverge. Received: learning_rate=1e\+30"):
        make_evaluator(make_model(), DynamicConfig("sgd", 1e30, 0.0)).score(TEXT)


def test_an_evaluation_that_diverges_leaves_no_progress(tmp_path):
    evaluator = make_evaluator(make_model(), folder=str(tmp_path), save_seconds=0.0)
    stored = []

    def spoil(done, *_):
        if done == 5:
            stored.extend(tmp_path.glob("*/*.npz"))
            weight = evaluator.adapting.model.weights[0]
            weight.assign(np.nan * weight)

    with pytest.raises(DivergedError):
        evaluator.score_lanes(evaluator.cut_lanes(TEXT), report=spoil)
    assert len(stored) == 1
    assert not list(tmp_path.iterdir())


def test_sliding_windows_are_refused():
    config = dataclasses.replace(CONFIG, mem_len=0, same_length=False)
    evaluator = make_evaluator(make_model(), config=config)
    with pytest.raises(UserError, match="it cannot use sliding windows"):
        evaluator.score_lanes(evaluator.cut_lanes(TEXT, stride=2))


def test_a_temperature_is_refused():
    with pytest.raises(UserError, match=r"`temperature` must be 1 in .*: add `--temperature 1`"):
        make_evaluator(make_model(), config=dataclasses.replace(CONFIG, temperature=1.1))


def test_compiled_steps_are_the_same():
    plain, compiled = (
        make_evaluator(make_model(), DynamicConfig("sgd", 1e-3), jit=jit).score(TEXT)
        for jit in ("none", "whole")
    )
    assert compiled.total_nats == pytest.approx(plain.total_nats, rel=1e-5)


def test_dropout_is_off():
    model = make_model()
    assert model.config.dropout > 0
    text = tf.constant(TEXT.ids[None, :5])
    adapting = make_evaluator(model).adapting
    mask = tf.ones((1, 5), bool)
    losses = [adapting.read(text, text, mask, adapting.initial_state(1))[0].numpy()]
    adapting.restart()
    losses.append(adapting.read(text, text, mask, adapting.initial_state(1))[0].numpy())
    np.testing.assert_array_equal(*losses)
