import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from small_runs import DROPPING, N_TOKEN, Text
from tables import slow_after

import txl_tf
from txl_tf.data import Vocabulary
from txl_tf.errors import UserError
from txl_tf.scoring.evaluator import Evaluator
from txl_tf.scoring.metrics import Score

TEXT = Text(np.random.default_rng(17).integers(0, N_TOKEN, 113))


@pytest.fixture(scope="module")
def model():
    """A model with dropout, which an evaluation must not use."""
    return txl_tf.TransformerXL(DROPPING, seed=7)


def make_config(**changes):
    defaults = {"eval_batch_size": 3, "tgt_len": 5, "mem_len": 7, "same_length": True}
    return txl_tf.EvalConfig(**{**defaults, **changes})


def evaluate(model, text, config, *, jit="none", **kwargs):
    """Scores a text in cold lanes."""
    evaluator = Evaluator(model, config, jit=jit)
    return evaluator.score_lanes(evaluator.cut_lanes(text, warm_len=0), **kwargs)


def sum_nll(model, ids, span, tgt_len, *, mask_empty=False):
    """Nats of one lane, read by itself in segments of which the last is shorter, not padded."""
    memory, nats = model.initial_memory(1, span.mem_len, mask_empty), 0.0
    for start in range(0, len(ids) - 1, tgt_len):
        segment = tf.constant(ids[None, start : start + tgt_len + 1])
        hidden, memory = model(segment[:, :-1], memory, span=span)
        nats += float(tf.reduce_sum(model.nll(hidden, segment[:, 1:])))
    return nats


def cut_lanes(n_lanes, ids=TEXT.ids, tgt_len=5):
    """The lanes of a text, whole segments, each with the token before its first target."""
    lane_len = math.ceil((len(ids) - 1) / (n_lanes * tgt_len)) * tgt_len
    return [ids[start : start + lane_len + 1] for start in range(0, len(ids) - 1, lane_len)]


def test_one_lane_equals_one_long_pass(model):
    config = make_config(eval_batch_size=1)
    # With same_length a query sees the same M + 1 states however the text is cut.
    expected = sum_nll(model, TEXT.ids, config.span, len(TEXT))
    assert evaluate(model, TEXT, config).total_nats == pytest.approx(expected, rel=1e-6)  # float32


@pytest.mark.parametrize(("n_lanes", "tgt_len"), slow_after(2, [(11, 13), (127, 5), (2, 5)]))
def test_every_token_but_the_first_counts_once(model, n_lanes, tgt_len):
    config = make_config(eval_batch_size=n_lanes, tgt_len=tgt_len, mem_len=0, same_length=False)
    assert evaluate(model, TEXT, config).tokens == len(TEXT) - 1


@pytest.mark.parametrize(
    "config",
    slow_after(
        2,
        [
            make_config(eval_batch_size=2, mem_len=19, clamp_len=11),
            make_config(eval_batch_size=11, tgt_len=13, same_length=False),
            make_config(same_length=False),
            make_config(mem_len=0, same_length=False),
        ],
    ),
    ids=["clamped", "one_segment", "causal", "no_memory"],
)
def test_padding_changes_no_lane(model, config):
    lanes = cut_lanes(config.eval_batch_size, tgt_len=config.tgt_len)
    expected = sum(sum_nll(model, lane, config.span, config.tgt_len) for lane in lanes)
    assert evaluate(model, TEXT, config).total_nats == pytest.approx(expected, rel=1e-6)  # float32


def test_empty_lanes_do_not_change_the_score(model):
    config, text = make_config(eval_batch_size=11), Text(TEXT.ids[:8])
    expected = sum(sum_nll(model, lane, config.span, 5) for lane in cut_lanes(11, text.ids))
    score = evaluate(model, text, config)
    assert score.total_nats == pytest.approx(expected, rel=1e-6)  # float32
    assert score.tokens == 7


DOCUMENTS = Text(TEXT.ids, (0, 4, 5, 17, 35, 112))  # the last one is a target alone


@pytest.mark.parametrize(
    ("tgt_len", "jit"), slow_after(1, [(5, "none"), (31, "chains"), (5, "whole")])
)
def test_documents_are_scored_as_if_each_was_read_alone(model, tgt_len, jit):
    config = make_config(eval_batch_size=1, tgt_len=tgt_len, reset_at_documents=True)
    # The last token of a document predicts the first of the next.
    documents = [
        DOCUMENTS.ids[start : end + 1]
        for start, end in itertools.pairwise(DOCUMENTS.document_starts)
    ]
    expected = sum(sum_nll(model, ids, config.span, 7, mask_empty=True) for ids in documents)
    score = evaluate(model, DOCUMENTS, config, jit=jit)
    assert score.total_nats == pytest.approx(expected, rel=1e-6)  # float32
    assert score.tokens == len(TEXT) - 1
    assert abs(score.total_nats - evaluate(model, TEXT, config).total_nats) > 0.01


def test_without_resetting_documents_change_nothing(model):
    assert evaluate(model, DOCUMENTS, make_config()) == evaluate(model, TEXT, make_config())


def test_an_evaluator_scores_the_weights_of_the_moment():
    model = txl_tf.TransformerXL(DROPPING, seed=7)
    evaluator = Evaluator(model, make_config())
    before = evaluator.score(TEXT)
    assert evaluator.score(TEXT) == before  # no memory is left over
    model.content_bias.assign(model.content_bias.numpy() + 1)
    assert evaluator.score(TEXT).total_nats != before.total_nats


def test_an_evaluation_can_stop_after_some_segments(model):
    config = make_config()
    score = evaluate(model, TEXT, config, max_segments=2)
    assert evaluate(model, TEXT, config, max_segments=997).tokens == len(TEXT) - 1
    starts = [lane[: 2 * config.tgt_len + 1] for lane in cut_lanes(3)]
    expected = sum(sum_nll(model, lane, config.span, config.tgt_len) for lane in starts)
    assert score.tokens == 2 * 3 * config.tgt_len
    assert score.total_nats == pytest.approx(expected, rel=1e-6)  # float32


def test_a_text_of_one_token_is_refused(model):
    with pytest.raises(UserError, match=r"at least 2 tokens.* Received: 1 tokens"):
        evaluate(model, Text([5]), make_config())


def test_a_score_knows_bits_and_perplexity():
    score = Score(total_nats=30 * math.log(2), tokens=10, level="char", n_unknown=0)
    assert score.nats_per_token == pytest.approx(3 * math.log(2))  # float64
    assert score.bpc == score.bits_per_token == pytest.approx(3)
    assert score.perplexity == pytest.approx(8)
    assert math.isfinite(Score(total_nats=1e6, tokens=1).perplexity)


@pytest.mark.parametrize("level", ["subword", None])
def test_tokens_that_are_no_characters_have_no_bits_per_character(level):
    assert Score(total_nats=30.0, tokens=10, level=level, n_unknown=0).bpc is None


def test_unknown_characters_leave_no_bits_per_character():
    score = Score(total_nats=30.0, tokens=10, level="char", n_unknown=3)
    assert (score.bpc, score.unknown_share) == (None, 0.3)


WORDS = Vocabulary("word", tuple(f"w{n}" for n in range(N_TOKEN)), unknown="w7")


def test_unknown_tokens_are_counted_if_a_vocabulary_tells_them(model):
    score = Evaluator(model, make_config(), vocabulary=WORDS).score(TEXT)
    assert (score.level, score.n_unknown) == ("word", np.count_nonzero(TEXT.ids[1:] == 7))
    score = Evaluator(model, make_config()).score(TEXT)
    assert (score.n_unknown, score.unknown_share, score.level) == (None, None, None)


@pytest.mark.parametrize(
    ("counting", "expected"),
    [
        ({}, "3 lanes, warmed by 30 tokens"),  # 4 * 7 in whole segments
        ({"warm_len": 0}, "3 lanes, cold"),
        ({"warm_len": 997}, "3 lanes, warmed by 80 tokens"),  # as much as there is
        ({"drop_rest": True}, "3 lanes, as the 2019 release counts"),
        ({"n_lanes": 1}, "1 lane"),
    ],
)
def test_lanes_say_how_they_count(model, counting, expected):
    config = make_config(eval_batch_size=counting.pop("n_lanes", 3))
    assert Evaluator(model, config).cut_lanes(TEXT, **counting).describe() == expected


def test_sliding_windows_have_no_lanes_to_warm(model):
    evaluator = Evaluator(model, make_config(mem_len=0, same_length=False))
    for arguments in ({"warm_len": 7}, {"drop_rest": True}):
        with pytest.raises(UserError, match="are for lanes, not for `stride`"):
            evaluator.cut_lanes(TEXT, stride=2, **arguments)
