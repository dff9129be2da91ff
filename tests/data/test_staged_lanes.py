"""Lanes whose segments change their length."""

import itertools

import numpy as np
import pytest
from positions import STARTS, Positions

from txl_tf.data.lanes.training_lanes import TrainingLanes
from txl_tf.errors import UserError

# The length changes within an epoch, at its end, and from long to short.
SCHEDULES = [((3, 2), (6, 3)), ((30, 2), (65, 3)), ((7, 10),)]
N_TOKENS = 240  # of a lane, that 80 steps of any of them read: three epochs and more
STAGED = pytest.mark.parametrize("schedule", SCHEDULES)


def make_lanes(schedule, *, tgt_len=5, n_tokens=229):
    split = Positions(n_tokens, STARTS)
    return TrainingLanes(split, n_lanes=3, tgt_len=tgt_len, tgt_len_schedule=schedule, seed=7)


def find_length(schedule, step):
    return next((length for end, length in schedule if step < end), 5)


def join(read, n_steps):
    """Returns all that single steps read, one behind the other: (rows, tokens)."""
    return np.concatenate([read(step)[0] for step in range(n_steps)], axis=-1)


@STAGED
def test_the_text_is_that_of_segments_of_the_common_multiple(schedule):
    """Over stages and epochs: no token is left out, none read twice, no lane moves."""
    lanes = make_lanes(schedule)
    unit = 10 if schedule == SCHEDULES[2] else 30
    whole = make_lanes((), tgt_len=unit)
    expected = whole.read(0, N_TOKENS // unit)[..., :-1].swapaxes(0, 1).reshape(3, N_TOKENS)
    found = join(lambda step: lanes.read(step)[..., :-1], 80)[:, :N_TOKENS]
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(np.diff(expected))) > 1  # several epochs


@STAGED
def test_documents_begin_where_they_do_without_stages(schedule):
    lanes = make_lanes(schedule)
    unit = 10 if schedule == SCHEDULES[2] else 30
    whole = make_lanes((), tgt_len=unit)
    expected = whole.read_document_starts(0, N_TOKENS // unit).swapaxes(0, 1).reshape(3, N_TOKENS)
    np.testing.assert_array_equal(join(lanes.read_document_starts, 80)[:, :N_TOKENS], expected)
    assert 3 < expected.sum() < N_TOKENS


@STAGED
def test_many_steps_at_once_are_those_read_one_by_one(schedule):
    lanes = make_lanes(schedule)
    bounds = [0, *lanes.changes, 80]
    assert lanes.changes == tuple(step for step, _ in schedule)
    for start, stop in itertools.pairwise(bounds):
        for read in (lanes.read, lanes.read_document_starts):
            single = np.concatenate([read(step) for step in range(start, stop)])
            assert single.shape[-1] - find_length(schedule, start) in (0, 1)
            np.testing.assert_array_equal(read(start, stop - start), single)
            np.testing.assert_array_equal(read(start + 1, 2, slice(1, 3)), single[1:3, 1:3])


@pytest.mark.parametrize("method", ["read", "read_document_starts"])
@pytest.mark.parametrize(("step", "n_steps", "change"), [(0, 7, 3), (5, 2, 6)])
def test_a_read_does_not_cross_a_change(method, step, n_steps, change):
    lanes = make_lanes(SCHEDULES[0])
    with pytest.raises(
        ValueError, match=f"changes at step {change}. Received: step={step}, n_steps={n_steps}"
    ):
        getattr(lanes, method)(step, n_steps)


def test_an_epoch_leaves_out_no_more_where_all_lengths_divide_the_last():
    plain = make_lanes((), tgt_len=12)
    staged = make_lanes(((6, 2), (12, 4)), tgt_len=12)
    assert staged.lane_len == plain.lane_len == 72
    assert staged.steps_per_epoch == plain.steps_per_epoch


def test_without_a_schedule_epochs_start_where_they_always_have():
    """As lanes without stages had it; other offsets would make other runs of the same seed."""
    lanes = TrainingLanes(Positions(229), n_lanes=3, tgt_len=7, seed=0)
    starts = [int(lanes.read(10 * epoch)[0, 0, 0]) for epoch in range(11)]
    assert starts == [16, 9, 18, 9, 8, 13, 8, 15, 6, 4, 5]


def test_a_split_too_short_for_the_common_multiple_is_refused():
    with pytest.raises(
        UserError,
        match=r"=3 lanes with segments of 30, the least common multiple of `tgt_len`=5 and .* "
        r"need at least 91 tokens, and it has 90$",
    ):
        make_lanes(SCHEDULES[0], n_tokens=90)
    assert make_lanes(SCHEDULES[0], n_tokens=91).lane_len == 30
