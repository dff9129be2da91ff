"""Segments of random lengths: what is drawn, and the text that lanes read by it."""

import itertools

import numpy as np
import pytest
from positions import STARTS, Positions

from txl_tf.data.lanes.training_lanes import RandomLengths, TrainingLanes

TGT_LEN, STD, HALF_RATE, N_LANES, N_TOKENS = 17, 2.0, 0.25, 3, 997
LONGEST = TGT_LEN + 6


def make_lanes(*, extra_len=0, seed=7, n_tokens=N_TOKENS, std=STD, half_rate=HALF_RATE):
    return TrainingLanes(
        Positions(n_tokens, STARTS),
        n_lanes=N_LANES,
        tgt_len=TGT_LEN,
        seed=seed,
        extra_len=extra_len,
        tgt_len_std=std,
        half_len_rate=half_rate,
    )


def draw(tgt_len=70, std=5.0, half_rate=0.05):
    lengths = RandomLengths(tgt_len, std, half_rate, lane_len=1_000_000, seed=3)
    ((_, bounds),) = lengths.locate(0, 14_000)
    return np.diff(bounds)


def test_lengths_have_the_distribution_of_the_definition():
    lengths = draw()
    is_half = lengths < 52
    # 14,000 draws: five standard errors. Integer parts are .5 smaller on average.
    assert np.mean(is_half) == pytest.approx(0.05, abs=0.01)
    assert lengths[~is_half].mean() == pytest.approx(69.5, abs=0.25)
    assert lengths[is_half].mean() == pytest.approx(34.5, abs=1.0)
    assert lengths[~is_half].std() == pytest.approx(5.0, abs=0.2)
    assert lengths.min() >= 20
    assert lengths.max() == 85


def test_every_epoch_is_cut_at_other_places_and_ends_at_its_end():
    lengths = RandomLengths(TGT_LEN, STD, HALF_RATE, lane_len=331, seed=7)
    epochs = list(lengths.locate(0, 200))
    assert [epoch for epoch, _ in epochs] == list(range(len(epochs)))
    assert all((bounds[0], bounds[-1]) == (0, 331) for _, bounds in epochs[:-1])
    assert all((np.diff(bounds) > 0).all() for _, bounds in epochs)
    assert len({tuple(bounds[:5]) for _, bounds in epochs}) == len(epochs)


def test_lengths_of_a_step_do_not_depend_on_steps_read_before():
    whole = make_lanes().read_lengths(0, 200)
    for step in (150, 3, 61):
        np.testing.assert_array_equal(make_lanes().read_lengths(step, 50), whole[step : step + 50])
    lanes = make_lanes()
    single = [lanes.read_lengths(step)[0] for step in range(200)]
    np.testing.assert_array_equal(single, whole)
    assert (make_lanes(seed=8).read_lengths(0, 200) != whole).any()


@pytest.mark.parametrize("extra_len", [0, 11])
def test_the_segments_are_the_text_of_a_lane_cut_at_the_lengths(extra_len):
    lanes = make_lanes(extra_len=extra_len)
    segments, lengths = lanes.read(0, 100), lanes.read_lengths(0, 100)
    assert segments.shape == (100, N_LANES, extra_len + LONGEST + 1)
    cut = [segment[:, : extra_len + n + 1] for segment, n in zip(segments, lengths, strict=True)]
    ends = 0
    for before, after in itertools.pairwise(cut):
        np.testing.assert_array_equal(np.diff(after), 1)
        moved = after[:, extra_len] != before[:, -1]
        assert moved.all() or not moved.any()
        ends += moved.all()
    n_read = lanes.count_tokens(100)
    assert n_read == lengths.sum()
    assert ends == (n_read - 1) // lanes.lane_len > 1
    assert lanes.lane_len == (N_TOKENS - 1 - extra_len) // N_LANES


def test_zeros_are_read_behind_the_split_outside_of_segments():
    lanes = make_lanes()
    n_behind = 0
    for step in range(100):
        segment, length = lanes.read(step)[0], lanes.read_lengths(step)[0]
        is_behind = np.diff(segment) != 1
        assert not is_behind[:, :length].any()
        assert not segment[:, 1:][is_behind].any()
        n_behind += is_behind.sum()
    assert n_behind > 0


def test_documents_begin_where_they_do():
    lanes = make_lanes(extra_len=11)
    inputs = lanes.read(0, 100)[..., :-1]
    is_behind = (inputs == 0) & (np.arange(inputs.shape[-1]) > 0)  # the split
    expected = np.isin(inputs, STARTS) & ~is_behind
    np.testing.assert_array_equal(lanes.read_document_starts(0, 100), expected)


def test_many_steps_at_once_are_those_read_one_by_one():
    lanes = make_lanes(extra_len=11)
    for read in (lanes.read, lanes.read_document_starts):
        single = np.concatenate([read(step) for step in range(100)])
        np.testing.assert_array_equal(read(3, 90, slice(1, 3)), single[3:93, 1:3])


@pytest.mark.parametrize(("std", "half_rate"), [(6.0, 0.0), (2.6, 0.25)])
def test_lengths_that_could_be_below_1_are_refused(std, half_rate):
    with pytest.raises(ValueError, match=r"`tgt_len` must leave each segment .* a token"):
        make_lanes(std=std, half_rate=half_rate)
