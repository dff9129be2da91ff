"""Lanes whose segments are read after the tokens before them."""

import numpy as np
import pytest
from positions import STARTS, Positions

from txl_tf.data.lanes.training_lanes import TrainingLanes
from txl_tf.errors import UserError

EXTRA_LEN, TGT_LEN, N_LANES, N_TOKENS = 11, 5, 3, 229


def make_lanes(extra_len=EXTRA_LEN, *, n_tokens=N_TOKENS, **options):
    split = Positions(n_tokens, STARTS)
    return TrainingLanes(
        split, n_lanes=N_LANES, tgt_len=TGT_LEN, seed=7, extra_len=extra_len, **options
    )


def test_a_segment_comes_after_the_tokens_before_it():
    segments = make_lanes().read(0, 40)
    assert segments.shape == (40, N_LANES, EXTRA_LEN + TGT_LEN + 1)
    np.testing.assert_array_equal(np.diff(segments), 1)
    assert segments.min() >= 0
    assert segments.max() < N_TOKENS


@pytest.mark.parametrize("schedule", [(), ((6, 2), (17, 3))])
def test_the_segments_are_those_of_the_text_behind_the_first_context(schedule):
    lanes = make_lanes(tgt_len_schedule=schedule)
    # The same epochs of the same text, of which the first tokens are missing.
    plain = make_lanes(0, n_tokens=N_TOKENS - EXTRA_LEN, tgt_len_schedule=schedule)
    for step in range(40):
        found = lanes.read(step)[..., EXTRA_LEN:]
        np.testing.assert_array_equal(found, EXTRA_LEN + plain.read(step))


def test_the_context_may_be_longer_than_a_lane():
    segments = make_lanes(97, n_tokens=139).read(0, 20)
    np.testing.assert_array_equal(np.diff(segments), 1)


def test_documents_begin_in_the_context_too_and_epochs_nowhere():
    lanes = make_lanes()
    inputs = lanes.read(0, 40)[..., :-1]
    np.testing.assert_array_equal(lanes.read_document_starts(0, 40), np.isin(inputs, STARTS))


def test_many_steps_at_once_are_those_read_one_by_one():
    lanes = make_lanes()
    for read in (lanes.read, lanes.read_document_starts):
        single = np.concatenate([read(step) for step in range(40)])
        np.testing.assert_array_equal(read(3, 30, slice(1, 3)), single[3:33, 1:3])


def test_a_split_of_the_context_alone_is_refused():
    with pytest.raises(UserError, match=r"the text is too short: .*, and it has 97$"):
        make_lanes(97, n_tokens=97)
