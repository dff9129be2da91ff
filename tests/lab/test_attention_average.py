"""Averages by distance beside sums over every pair of query and key."""

import numpy as np
import pytest
from numpy_models import soften, trace_text
from small_language_model import SPANS, make_transformer
from small_runs import Text
from tables import slow_after

from txl_tf.config import EvalConfig, ModelConfig
from txl_tf.lab.attention_average import (
    AttentionAverages,
    average_attention,
    cut_attention_lanes,
)
from txl_tf.lab.attention_reader import TERMS
from txl_tf.language_model import LanguageModel
from txl_tf.models.transformer_xl import TransformerXL

TGT_LEN = 5
TEXT = Text(np.random.default_rng(5).integers(0, 13, 48))
DOCUMENTS = Text(TEXT.ids, [9, 11, 26])
CLOSE = {"rtol": 0, "atol": 1e-5}


def average(text, span, *, n_lanes=1, n_targets=1000, resets=False, jit="none"):
    evaluation = EvalConfig(
        tgt_len=TGT_LEN, eval_batch_size=n_lanes, reset_at_documents=resets, **vars(span)
    )
    lm = LanguageModel(make_transformer(), None, evaluation)
    lanes = cut_attention_lanes(lm, text, n_targets=n_targets)
    assert lanes.n_lanes == n_lanes
    return average_attention(lm, lanes, n_targets=n_targets, jit=jit)


def average_slowly(text, span, *, resets=False):
    """Returns the averages (1 + 4, L, N, S) over all targets, by loops."""
    starts = np.isin(np.arange(len(text)), text.document_starts) if resets else None
    trace = trace_text(make_transformer(), text.ids, span, TGT_LEN, document_starts=starts)
    every = np.stack([trace.weights, *(soften(term, trace.mask) for term in trace.terms)])
    sums = np.zeros((*every.shape[:3], span.mem_len + TGT_LEN))
    for i in range(len(text) - 1):
        for j in range(i + 1):
            if trace.mask[i, span.mem_len + j] and trace.is_token[i, span.mem_len + j]:
                sums[..., i - j] += every[..., i, span.mem_len + j]
    return sums / (len(text) - 1)


def assert_are(averages, expected):
    """The averages are the expected ones, and whatever is expected beyond them is 0."""
    found = np.stack([averages.weights, *(averages.terms[name] for name in TERMS)])
    n_distances = found.shape[-1]
    np.testing.assert_allclose(found, expected[..., :n_distances], **CLOSE)
    assert not expected[..., n_distances:].any()
    np.testing.assert_allclose(averages.empty, 1 - expected[0].sum(axis=-1), **CLOSE)


@pytest.mark.parametrize("span", slow_after(1, [SPANS[3], SPANS[0], SPANS[4]]), ids=str)
def test_averages_are_sums_over_every_pair(span):
    averages = average(TEXT, span)
    assert averages.n_targets == len(TEXT) - 1
    assert averages.weights.dtype == np.float64
    assert_are(averages, average_slowly(TEXT, span))


def test_other_documents_and_an_empty_memory_are_hidden_with_resets():
    span = SPANS[3]
    averages = average(DOCUMENTS, span, resets=True)
    assert_are(averages, average_slowly(DOCUMENTS, span, resets=True))
    np.testing.assert_allclose(averages.empty, 0, **CLOSE)
    assert average(DOCUMENTS, span).empty.mean() > 0.01


def test_lanes_give_the_averages_of_one():
    assert_are(average(TEXT, SPANS[1], n_lanes=3), average_slowly(TEXT, SPANS[1]))


@pytest.mark.slow
def test_a_compiled_step_gives_the_same_averages():
    assert_are(average(TEXT, SPANS[-1], jit="whole"), average_slowly(TEXT, SPANS[-1]))


def test_targets_are_rounded_up_to_whole_segments_of_all_lanes():
    assert average(TEXT, SPANS[1], n_lanes=2, n_targets=11).n_targets == 20
    part = Text(TEXT.ids[:16])
    assert_are(average(TEXT, SPANS[1], n_targets=13), average_slowly(part, SPANS[1]))


def test_lanes_are_few_enough_for_the_scores_of_a_segment():
    config = ModelConfig(n_token=13, n_layer=1, d_model=16, d_embed=16, n_head=16, d_head=1)
    model, text = TransformerXL(config), Text(np.zeros(100_001, np.int32))

    def count(**fields):
        evaluation = EvalConfig(tgt_len=128, eval_batch_size=64, **fields)
        lm = LanguageModel(model, None, evaluation)
        return cut_attention_lanes(lm, text, n_targets=10**6).n_lanes

    assert count(mem_len=64) == 42  # 2**24 // (16 * 128 * 192)
    assert count(mem_len=1600) == 4
    assert count(mem_len=20_000) == 1


def test_no_more_lanes_than_segments_are_read():
    evaluation = EvalConfig(tgt_len=TGT_LEN, mem_len=3, eval_batch_size=64)
    lm = LanguageModel(make_transformer(), None, evaluation)
    assert cut_attention_lanes(lm, TEXT, n_targets=11).n_lanes == 3
    assert cut_attention_lanes(lm, TEXT, n_targets=1000).n_lanes == 10


def test_a_head_has_the_figures_of_its_weights():
    weights = np.array([[[0.5, 0.1, 0.1, 0.1], [0.0, 0.0, 0.0, 0.4]]])
    averages = AttentionAverages(7, 2, weights, {})
    np.testing.assert_allclose(averages.empty, [[0.2, 0.6]])
    np.testing.assert_allclose(averages.mean_distance, [[0.6 / 0.8, 3]])
    np.testing.assert_allclose(averages.beyond_segment, [[0.25, 1]])
    assert averages.find_distance(0.5).tolist() == [[0, 3]]
    assert averages.find_distance(0.9).tolist() == [[3, 3]]
