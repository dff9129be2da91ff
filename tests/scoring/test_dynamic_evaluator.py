import dataclasses

import numpy as np
import pytest
from small_language_model import make_transformer
from small_lstm import make_model as make_lstm
from small_runs import Text
from tables import slow_after

from txl_tf.config import EvalConfig
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.errors import UserError
from txl_tf.scoring.dynamic_evaluation import AdaptingReader, make_adapting_reader
from txl_tf.scoring.evaluator import Evaluator

TEXT = Text(np.random.default_rng(3).integers(0, 13, 97), [0, 17, 31, 60])
CONFIG = EvalConfig(tgt_len=5, mem_len=7, same_length=True, eval_batch_size=1)
SGD = DynamicConfig("sgd", 0.05, 0.01)


def make_evaluator(model, dynamic=SGD, config=CONFIG, jit="none"):
    reader = AdaptingReader(model, config.span, dynamic, jit=jit)
    return Evaluator(model, config, reader=reader)


def list_weights(model):
    return [weight.numpy() for weight in model.weights]


def assert_same(weights, others):
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)


# The models have dropout, which neither may use.
@pytest.mark.parametrize(
    ("make", "changes"),
    slow_after(
        1,
        [
            (make_transformer, {"eval_batch_size": 3, "reset_at_documents": True}),
            (make_transformer, {}),
            (make_lstm, {"eval_batch_size": 3, "mem_len": 0, "same_length": False}),
        ],
    ),
    ids=["documents", "transformer", "lstm"],
)
def test_with_steps_of_nothing_it_is_the_static_evaluation(make, changes):
    config = dataclasses.replace(CONFIG, **changes)
    static = Evaluator(make(), config).score(TEXT)
    dynamic = make_evaluator(make(), DynamicConfig("sgd", 1e-30, 0.0), config).score(TEXT)
    assert dynamic.tokens == static.tokens
    assert dynamic.total_nats == pytest.approx(static.total_nats, rel=1e-6)


@pytest.mark.slow
def test_a_text_that_repeats_itself_is_learned():
    text = Text(np.tile(TEXT.ids[:23], 20))
    model = make_transformer()
    static = Evaluator(model, CONFIG).score(text)
    dynamic = make_evaluator(model, DynamicConfig("sgd", 0.01, 0.01)).score(text)
    assert dynamic.nats_per_token < static.nats_per_token - 0.3


def test_every_evaluation_begins_with_the_unchanged_weights():
    model = make_transformer()
    before = list_weights(model)
    evaluator = make_evaluator(model)
    first = evaluator.score(TEXT)
    assert_same(list_weights(model), before)
    assert evaluator.score(TEXT) == first
    model.weights[2].assign(0 * model.weights[2])
    assert evaluator.score(TEXT) != first


def test_nothing_is_learned_from_what_warms_a_lane():
    config = dataclasses.replace(CONFIG, eval_batch_size=3)
    evaluator = make_evaluator(make_transformer(), config=config)
    lanes = evaluator.cut_lanes(TEXT)
    assert lanes.n_warm
    evaluator.score_lanes(lanes, max_segments=0)
    adapting = evaluator.reader
    assert_same(list_weights(adapting.model), list_weights(evaluator.model))
    evaluator.score_lanes(lanes, max_segments=1)
    assert (adapting.model.weights[2].numpy() != evaluator.model.weights[2].numpy()).any()


def test_weights_that_diverge_are_an_error():
    with pytest.raises(UserError, match=r"the weights diverge. Received: learning_rate=1e\+30"):
        make_evaluator(make_transformer(), DynamicConfig("sgd", 1e30, 0.0)).score(TEXT)


def test_sliding_windows_are_refused():
    config = dataclasses.replace(CONFIG, mem_len=0, same_length=False)
    evaluator = make_evaluator(make_transformer(), config=config)
    with pytest.raises(UserError, match="it cannot use `stride`"):
        evaluator.cut_lanes(TEXT, stride=2)


def test_a_temperature_is_refused():
    with pytest.raises(UserError, match=r"`temperature` must be 1 in .*: add `--temperature 1`"):
        make_adapting_reader(
            make_transformer(), dataclasses.replace(CONFIG, temperature=1.1), SGD, records=None
        )


@pytest.mark.slow
def test_compiled_steps_are_the_same():
    plain, compiled = (
        make_evaluator(make_transformer(), DynamicConfig("sgd", 1e-3), jit=jit).score(TEXT)
        for jit in ("none", "whole")
    )
    assert compiled.total_nats == pytest.approx(plain.total_nats, rel=1e-5)
