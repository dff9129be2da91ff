import numpy as np
import pytest
from positions import STARTS, Positions

from txl_tf.data.lanes.training_lanes import TrainingLanes
from txl_tf.errors import UserError


def make_lanes(n_tokens=211, n_lanes=3, tgt_len=7, seed=0, document_starts=()):
    split = Positions(n_tokens, document_starts)
    return TrainingLanes(split, n_lanes=n_lanes, tgt_len=tgt_len, seed=seed)


def test_rows_are_consecutive_tokens_and_continue_where_they_ended():
    lanes = make_lanes()
    segments = lanes.read(0, lanes.steps_per_epoch)
    assert segments.shape == (10, 3, 8)
    assert segments.dtype == np.int32
    np.testing.assert_array_equal(np.diff(segments), 1)
    np.testing.assert_array_equal(segments[1:, :, 0], segments[:-1, :, -1])


def test_no_target_is_read_twice_in_an_epoch():
    lanes = make_lanes(n_tokens=233)
    targets = lanes.read(lanes.steps_per_epoch, lanes.steps_per_epoch)[..., 1:]
    assert len(np.unique(targets)) == targets.size


def test_epochs_start_at_different_offsets():
    lanes = make_lanes(n_tokens=229)
    starts = {int(lanes.read(epoch * lanes.steps_per_epoch)[0, 0, 0]) for epoch in range(40)}
    assert starts == set(range(229 - 210))


def test_any_step_equals_reading_from_the_start():
    lanes = make_lanes(n_tokens=229)
    everything = lanes.read(0, 37)
    for step, n_steps in [(0, 1), (9, 2), (13, 1), (8, 23), (36, 1)]:
        np.testing.assert_array_equal(lanes.read(step, n_steps), everything[step : step + n_steps])


def test_rows_are_rows_of_the_whole_batch():
    lanes = make_lanes(n_lanes=5)
    everything = lanes.read(4, 7)
    np.testing.assert_array_equal(lanes.read(4, 7, rows=slice(1, 4)), everything[:, 1:4])
    np.testing.assert_array_equal(lanes.read(4, 7, rows=slice(3, None)), everything[:, 3:])


def test_the_seed_decides_the_offsets():
    steps = slice(0, None, make_lanes(n_tokens=229).steps_per_epoch)
    one, same, other = (
        make_lanes(n_tokens=229, seed=seed).read(0, 100)[steps, 0, 0] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_a_text_that_is_too_short_is_told_what_is_needed():
    with pytest.raises(UserError, match=r"=5 lanes .* `tgt_len`=7 need at least 36 .* it has 35$"):
        make_lanes(n_tokens=35, n_lanes=5)
    assert make_lanes(n_tokens=36, n_lanes=5).steps_per_epoch == 1


def test_documents_begin_where_their_first_token_is_an_input():
    lanes = make_lanes(n_tokens=229, document_starts=STARTS)
    ids = lanes.read(0, 37)[..., :-1]
    expected = np.isin(ids, STARTS)
    assert expected.any(axis=(0, 1)).all()  # at every place of a segment
    expected[:: lanes.steps_per_epoch, :, 0] = True
    starts = lanes.read_document_starts(0, 37)
    assert starts.dtype == bool
    np.testing.assert_array_equal(starts, expected)


def test_without_documents_a_lane_starts_anew_with_every_epoch_alone():
    lanes = make_lanes(n_tokens=229)
    expected = np.zeros((37, 3, 7), bool)
    expected[:: lanes.steps_per_epoch, :, 0] = True
    np.testing.assert_array_equal(lanes.read_document_starts(0, 37), expected)


def test_document_starts_of_any_step_and_rows_equal_those_of_all():
    lanes = make_lanes(n_tokens=229, document_starts=STARTS)
    everything = lanes.read_document_starts(0, 37)
    for step, n_steps in [(0, 1), (9, 2), (13, 1), (8, 23), (36, 1)]:
        found = lanes.read_document_starts(step, n_steps, rows=slice(1, 3))
        np.testing.assert_array_equal(found, everything[step : step + n_steps, 1:3])
