"""Lanes of evaluations."""

import numpy as np
import pytest
from positions import Positions

from txl_tf.data.lanes.evaluation_lanes import EvaluationLanes


@pytest.mark.parametrize("warm_len", [0, 11, 997])
@pytest.mark.parametrize(
    ("n_tokens", "n_lanes", "tgt_len"),
    [(103, 1, 7), (103, 5, 7), (103, 5, 1), (103, 7, 211), (103, 211, 5), (2, 3, 5), (36, 5, 7)],
)
def test_every_token_but_the_first_is_a_target_once(n_tokens, n_lanes, tgt_len, warm_len):
    lanes = EvaluationLanes(
        Positions(n_tokens), n_lanes=n_lanes, tgt_len=tgt_len, warm_len=warm_len
    )
    targets = [segment.targets[segment.mask] for segment in lanes]
    assert sorted(np.concatenate(targets).tolist()) == list(range(1, n_tokens))
    assert (lanes.n_targets, lanes.n_left_out) == (n_tokens - 1, 0)


EVALUATED = (0, 5, 6, 31, 42, 101, 102)  # the last one is no input


@pytest.fixture(params=[(5, 7), (61, 3)])
def evaluation(request):
    n_lanes, tgt_len = request.param
    return EvaluationLanes(Positions(103, EVALUATED), n_lanes=n_lanes, tgt_len=tgt_len)


def test_rows_of_an_evaluation_go_on_and_are_padded_at_their_end(evaluation):
    segments = list(evaluation)
    assert len(evaluation) == len(segments)
    ids, mask = (np.concatenate([s[index] for s in segments], axis=1) for index in (0, 2))
    assert (mask[:, :-1] >= mask[:, 1:]).all()
    np.testing.assert_array_equal(np.diff(ids)[mask[:, 1:]], 1)
    for segment in segments:
        np.testing.assert_array_equal(segment.targets - segment.ids, segment.mask)
        assert not segment.ids[~segment.mask].any()
        *arrays, begins = segment[:5]
        for array, dtype in zip(arrays, (np.int32, np.int32, bool, bool), strict=True):
            assert array.shape == (evaluation.n_lanes, evaluation.tgt_len)
            assert array.dtype == dtype
        assert (begins.shape, begins.dtype) == ((evaluation.n_lanes,), bool)


def test_documents_of_an_evaluation_begin_where_their_first_token_is_an_input(evaluation):
    found = []
    for segment in evaluation:
        is_start = np.isin(segment.ids, EVALUATED) & segment.mask  # padding is 0, and no start
        np.testing.assert_array_equal(segment.document_starts, is_start)
        found += segment.ids[segment.document_starts].tolist()
    assert sorted(found) == [0, 5, 6, 31, 42, 101]


@pytest.mark.parametrize("n_tokens", [0, 1])
def test_evaluation_needs_a_context_and_a_target(n_tokens):
    with pytest.raises(ValueError, match=rf"at least 2 tokens.* Received: {n_tokens} tokens"):
        EvaluationLanes(Positions(n_tokens), n_lanes=3, tgt_len=5)


def test_lanes_without_a_warm_up_have_no_segments_for_it(evaluation):
    assert evaluation.n_warm == 0
    first, *others = evaluation
    np.testing.assert_array_equal(first.begins, first.mask[:, 0])
    assert not any(segment.begins.any() for segment in others)


def read_lanes(lanes):
    """Returns the inputs, their mask (B, n), and where each lane begins, (B, segments)."""
    segments = list(lanes)
    ids, mask = (
        np.concatenate([getattr(segment, name) for segment in segments], axis=1)
        for name in ("ids", "mask")
    )
    return ids, mask, np.stack([segment.begins for segment in segments], axis=1)


@pytest.mark.parametrize("n_lanes", [2, 5, 16])
def test_segments_begin_where_those_of_one_lane_do(n_lanes):
    lanes = EvaluationLanes(Positions(103), n_lanes=n_lanes, tgt_len=7, warm_len=12)
    found = [segment.ids[segment.mask[:, 0], 0] for segment in lanes]
    assert sorted(np.concatenate(found).tolist()) == list(range(0, 102, 7))


@pytest.mark.parametrize("n_lanes", [2, 5, 16])
@pytest.mark.parametrize("warm_len", [7, 12, 40, 997])
def test_a_warm_lane_first_reads_the_text_before_its_own(n_lanes, warm_len):
    lanes = EvaluationLanes(Positions(103), n_lanes=n_lanes, tgt_len=7, warm_len=warm_len)
    n_warm = -(-warm_len // 7) * 7
    for ids, mask, begins in zip(*read_lanes(lanes), strict=True):
        if not mask.any():
            assert not ids.any()
            assert not begins.any()
            continue
        own = ids[mask].tolist()
        (begin,) = np.flatnonzero(begins) * 7
        read = ids[begin : np.flatnonzero(mask)[-1] + 1].tolist()
        assert not ids[:begin].any()
        assert read == list(range(max(0, own[0] - n_warm), own[-1] + 1))


def test_no_more_segments_warm_than_the_last_lane_has_before_it():
    lanes = EvaluationLanes(Positions(103), n_lanes=5, tgt_len=7, warm_len=997)
    assert lanes.n_warm == 4 * 3  # the last of 5 lanes of 3 segments
    assert len(lanes) == 5 * 3
    assert [segment.mask.any() for segment in lanes] == [False] * 12 + [True] * 3


def test_documents_begin_in_the_segments_that_warm_too():
    split = Positions(103, EVALUATED)
    for segment in EvaluationLanes(split, n_lanes=5, tgt_len=7, warm_len=12):
        is_read = segment.targets > 0  # a target is the position behind its input
        expected = np.isin(segment.ids, EVALUATED) & is_read
        np.testing.assert_array_equal(segment.document_starts, expected)


@pytest.mark.parametrize(("n_lanes", "tgt_len"), [(1, 7), (5, 7), (5, 19), (7, 3), (51, 2)])
def test_the_release_cuts_equal_lanes_and_leaves_out_the_rest(n_lanes, tgt_len):
    lanes = EvaluationLanes(Positions(103), n_lanes=n_lanes, tgt_len=tgt_len, drop_rest=True)
    targets = np.concatenate([segment.targets for segment in lanes], axis=1)
    lane_len = 103 // n_lanes
    expected = np.arange(n_lanes * lane_len).reshape(n_lanes, lane_len)[:, 1:]
    np.testing.assert_array_equal(targets[:, : lane_len - 1], expected)
    assert not targets[:, lane_len - 1 :].any()
    assert lanes.n_targets == expected.size
    assert lanes.n_left_out == 102 - expected.size
    assert len(lanes) == -(-(lane_len - 1) // tgt_len)


def test_lanes_of_the_release_are_cold():
    message = r"^`warm_len` must be 0 with `drop_rest`.* Received: warm_len=3$"
    with pytest.raises(ValueError, match=message):
        EvaluationLanes(Positions(103), n_lanes=5, tgt_len=7, warm_len=3, drop_rest=True)


def test_a_negative_length_to_warm_is_refused():
    with pytest.raises(ValueError, match="`warm_len` must be an integer >= 0"):
        EvaluationLanes(Positions(103), n_lanes=5, tgt_len=7, warm_len=-7)
