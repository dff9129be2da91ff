"""What counts in an evaluation: warm lanes, cold ones, and those of the 2019 release."""

import dataclasses

import numpy as np
import pytest
from golden_cases import EVALUATIONS, load_case, parse_evaluation
from small_model import LOSS_TOLERANCE
from small_runs import MODEL, N_TOKEN, TRAINING, Text, make_lanes, make_trainer, run_steps
from tables import slow_after

import txl_tf
from txl_tf.release.weights import load_model
from txl_tf.scoring.evaluator import Evaluator, choose_warm_len

N_LANES = (3, 16)


def make_text(n_token, n_tokens=401, seed=11):
    """Tokens of which most are those that stood 11 before: it takes a memory to know them."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, n_token, n_tokens)
    for index in 11 + np.flatnonzero(rng.random(n_tokens - 11) < 0.9):
        ids[index] = ids[index - 11]
    return Text(ids, np.cumsum(rng.integers(1, 61, n_tokens // 61)))


def make_evaluator(model, config, n_lanes):
    return Evaluator(model, dataclasses.replace(config, eval_batch_size=n_lanes))


def score(evaluator, text, *, warm_len=0, **counting):
    counting["warm_len"] = warm_len
    return evaluator.score_lanes(evaluator.cut_lanes(text, **counting))


def list_errors(model, text, config, n_lanes=N_LANES, **counting):
    """Returns how far the mean loss in some lanes is from that in one, for each number of them."""
    alone, *scores = (
        score(make_evaluator(model, config, number), text, **counting).nats_per_token
        for number in (1, *n_lanes)
    )
    return [abs(nats - alone) for nats in scores]


@pytest.fixture(scope="module")
def golden():
    """A golden model, a text, and how to evaluate it."""
    case = load_case("char")
    config = txl_tf.EvalConfig(tgt_len=5, mem_len=23, same_length=True, clamp_len=17)
    return load_model(case.checkpoint, case.config), make_text(case.config.n_token), config


@pytest.mark.slow
def test_warm_lanes_of_a_trained_model_give_one_number(one_replica):
    """A model that learned to copy, on a text of the same kind."""
    training = dataclasses.replace(TRAINING, learning_rate=0.01, train_steps=400, mem_len=23)
    trainer = make_trainer(
        one_replica, dataclasses.replace(MODEL, n_layer=5, init_std=0.2), training, jit="whole"
    )
    run_steps(trainer, [400], make_lanes(training, make_text(N_TOKEN, 4999)))
    model, text = trainer.model, make_text(N_TOKEN, 601, seed=13)
    config = txl_tf.EvalConfig(tgt_len=5, mem_len=23, same_length=True)
    warm_len = choose_warm_len(config.mem_len)
    assert max(list_errors(model, text, config, warm_len=warm_len)) < 1e-3
    assert max(list_errors(model, text, config, (16,))) > 0.01  # cold


def test_warm_lanes_of_a_golden_model_give_one_number(golden):
    model, text, config = golden
    warm_len = choose_warm_len(config.mem_len)
    assert max(list_errors(model, text, config, warm_len=warm_len)) < 1e-3
    assert max(list_errors(model, text, config, (16,))) > 1e-3  # cold


@pytest.mark.parametrize(
    "changes",
    slow_after(
        2,
        [
            {"reset_at_documents": True},
            {"mem_len": 3},  # below tgt_len
            {"same_length": False},
            {"mem_len": 0, "same_length": False},
        ],
    ),
    ids=str,
)
def test_a_memory_a_layer_makes_warm_lanes_exact(golden, changes):
    model, text, config = golden
    config = dataclasses.replace(config, **changes)
    reach = -(-config.mem_len // config.tgt_len) * config.tgt_len  # in whole segments
    warm_len = model.config.n_layer * reach
    assert max(list_errors(model, text, config, (16,), warm_len=warm_len)) < 2e-6  # float32


def test_segments_that_warm_are_no_part_of_some_segments(golden):
    model, text, config = golden
    evaluator = make_evaluator(model, config, 7)
    lanes, reports = evaluator.cut_lanes(text, warm_len=13), []
    report = evaluator.score_lanes(
        lanes, max_segments=2, report=lambda *report: reports.append(report)
    )
    assert [(done, total, each.tokens) for done, total, each in reports] == [
        *((index, 5, 0) for index in (1, 2, 3)),
        (4, 5, 35),
        (5, 5, 70),
    ]
    assert report == reports[-1][2]


@pytest.mark.parametrize(("name", "key"), slow_after(1, reversed(EVALUATIONS[2:])))
def test_counting_as_the_release_gives_the_means_of_the_2019_code(name, key):
    case, (tgt_len, span) = load_case(name), parse_evaluation(key)
    model, tokens = load_model(case.checkpoint, case.config), case.golden["tokens"]
    n_lanes = len(tokens)
    text = Text(np.append(tokens, np.zeros(n_lanes - 1)))  # with as much left over as can be
    config = txl_tf.EvalConfig(tgt_len, **dataclasses.asdict(span))
    evaluator, expected = make_evaluator(model, config, n_lanes), case.golden[key]
    counted = score(evaluator, text, drop_rest=True)
    assert counted.tokens == expected.size
    assert counted.nats_per_token == pytest.approx(expected.mean(), abs=LOSS_TOLERANCE)
    warm = score(evaluator, text, warm_len=len(text))
    assert abs(warm.nats_per_token - expected.mean()) > 1e-3
