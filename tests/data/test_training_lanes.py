"""The text that lanes of every kind read; every token is its own position."""

import itertools

import numpy as np
import pytest
from positions import STARTS, Positions

from txl_tf.data.lanes.training_lanes import RandomLengths, TrainingLanes
from txl_tf.errors import UserError

N_STEPS = 80  # three epochs and more
RANDOM = {"tgt_len": 17, "tgt_len_std": 2.0, "half_len_rate": 0.25}
# The length changes within an epoch, at its end, and from long to short.
SCHEDULES = [((3, 2), (6, 3)), ((30, 2), (65, 3)), ((7, 10),)]
KINDS = {
    "plain": {},
    "context": {"extra_len": 11},
    "context longer than a lane": {"extra_len": 97},
    "random": RANDOM,
    "random after context": RANDOM | {"extra_len": 11},
    "stages after context": {"extra_len": 11, "tgt_len_schedule": ((6, 2), (17, 3))},
} | {f"stages {schedule}": {"tgt_len_schedule": schedule} for schedule in SCHEDULES}
EVERY = pytest.mark.parametrize("kind", KINDS)


def make_lanes(kind="plain", n_tokens=229, document_starts=STARTS, **changes):
    options = {"n_lanes": 3, "tgt_len": 5, "seed": 7} | KINDS[kind] | changes
    return TrainingLanes(Positions(n_tokens, document_starts), **options)


def cut(lanes, step):
    """Returns a segment with its context and the target of its last token, (B, ...)."""
    length = lanes.extra_len + lanes.read_lengths(step)[0]
    return lanes.read(step)[0][:, : length + 1]


@EVERY
def test_segments_are_consecutive_tokens_and_continue_until_an_epoch_ends(kind):
    lanes = make_lanes(kind)
    segments = [cut(lanes, step) for step in range(N_STEPS)]
    for before, (step, after) in zip(segments, enumerate(segments[1:], 1), strict=False):
        np.testing.assert_array_equal(np.diff(after), 1)
        continues = after[:, lanes.extra_len] == before[:, -1]
        is_new_epoch = lanes.count_tokens(step) % lanes.lane_len == 0
        np.testing.assert_array_equal(continues, not is_new_epoch)
    assert lanes.count_tokens(N_STEPS) // lanes.lane_len > 1


@EVERY
def test_an_epoch_reads_no_target_twice(kind):
    lanes, targets = make_lanes(kind), []
    for step in itertools.takewhile(lambda s: lanes.count_tokens(s) < lanes.lane_len, range(999)):
        targets.append(cut(lanes, step)[:, lanes.extra_len + 1 :].ravel())
    targets = np.concatenate(targets)
    assert len(np.unique(targets)) == len(targets) == lanes.n_lanes * lanes.lane_len


@EVERY
def test_documents_begin_where_their_first_token_is_an_input(kind):
    """And, without context, where an epoch begins."""
    lanes, n_starts = make_lanes(kind), 0
    for step in range(N_STEPS):
        inputs = cut(lanes, step)[:, :-1]
        expected = np.isin(inputs, STARTS)
        if lanes.count_tokens(step) % lanes.lane_len == 0 and not lanes.extra_len:
            expected[:, 0] = True
        starts = lanes.read_document_starts(step)[0]
        assert starts.dtype == bool
        np.testing.assert_array_equal(starts[:, : inputs.shape[1]], expected)
        n_starts += expected.sum()
    assert n_starts > N_STEPS // 4


@EVERY
def test_many_steps_at_once_are_those_read_one_by_one(kind):
    lanes = make_lanes(kind)
    assert lanes.changes == tuple(step for step, _ in KINDS[kind].get("tgt_len_schedule", ()))
    for start, stop in itertools.pairwise([0, *lanes.changes, N_STEPS]):
        for read in (lanes.read, lanes.read_document_starts):
            single = np.concatenate([read(step) for step in range(start, stop)])
            np.testing.assert_array_equal(read(start, stop - start), single)
            np.testing.assert_array_equal(read(start + 1, 2, slice(1, 3)), single[1:3, 1:3])
            np.testing.assert_array_equal(read(start + 1, 2, slice(2, None)), single[1:3, 2:])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_read_the_text_of_segments_of_the_common_multiple(schedule):
    """Over stages and epochs: no token is left out, none read twice, no lane moves."""
    n_tokens, unit = 240, 10 if schedule == SCHEDULES[2] else 30
    lanes, whole = make_lanes(f"stages {schedule}"), make_lanes(tgt_len=unit)
    expected = whole.read(0, n_tokens // unit)[..., :-1].swapaxes(0, 1).reshape(3, n_tokens)
    found = np.concatenate([lanes.read(step)[0, :, :-1] for step in range(N_STEPS)], axis=-1)
    np.testing.assert_array_equal(found[:, :n_tokens], expected)


@pytest.mark.parametrize("kind", ["context", "stages after context"])
def test_with_context_segments_are_those_of_the_text_behind_it(kind):
    """The same epochs of the same text, of which the first tokens are missing."""
    lanes, plain = make_lanes(kind), make_lanes(kind, 229 - 11, extra_len=0)
    for step in range(N_STEPS):
        np.testing.assert_array_equal(lanes.read(step)[..., 11:], 11 + plain.read(step))


def test_epochs_start_at_every_offset_by_the_seed():
    def list_starts(seed):
        lanes = make_lanes(seed=seed, tgt_len=7)
        return [int(lanes.read(epoch * lanes.steps_per_epoch)[0, 0, 0]) for epoch in range(40)]

    assert set(list_starts(0)) == set(range(229 - 210))
    assert list_starts(0) != list_starts(1)
    # Other offsets would make other runs of the same seed.
    assert list_starts(0)[:11] == [16, 9, 18, 9, 8, 13, 8, 15, 6, 4, 5]


def test_an_epoch_leaves_out_no_more_where_all_lengths_divide_the_last():
    plain, staged = (
        make_lanes(tgt_len=12, tgt_len_schedule=schedule) for schedule in ((), ((6, 2), (12, 4)))
    )
    assert staged.lane_len == plain.lane_len == 72
    assert staged.steps_per_epoch == plain.steps_per_epoch


@pytest.mark.parametrize("method", ["read", "read_document_starts"])
@pytest.mark.parametrize(("step", "n_steps", "change"), [(0, 7, 3), (5, 2, 6)])
def test_a_read_does_not_cross_a_change_of_length(method, step, n_steps, change):
    lanes = make_lanes(f"stages {SCHEDULES[0]}")
    with pytest.raises(
        ValueError, match=f"changes at step {change}. Received: step={step}, n_steps={n_steps}"
    ):
        getattr(lanes, method)(step, n_steps)


@pytest.mark.parametrize(
    ("kind", "n_tokens", "message"),
    [
        ("plain", 15, r"=3 lanes .* `tgt_len`=5 need at least 16 .* it has 15$"),
        ("context longer than a lane", 97, r"the text is too short: .*, and it has 97$"),
        (
            f"stages {SCHEDULES[0]}",
            90,
            r"=3 lanes with segments of 30, the least common multiple of `tgt_len`=5 and .* "
            r"need at least 91 tokens, and it has 90$",
        ),
    ],
)
def test_a_text_that_is_too_short_is_refused_with_what_is_needed(kind, n_tokens, message):
    with pytest.raises(UserError, match=message):
        make_lanes(kind, n_tokens)
    assert make_lanes(kind, n_tokens + 16).lane_len > 0


def test_random_lengths_have_the_distribution_of_the_definition():
    _, bounds = RandomLengths(70, 5.0, 0.05, lane_len=1_000_000, seed=3).find(0)
    lengths = np.diff(bounds[:14_001])
    is_half = lengths < 52
    # 14,000 draws: five standard errors. Integer parts are .5 smaller on average.
    assert np.mean(is_half) == pytest.approx(0.05, abs=0.01)
    assert lengths[~is_half].mean() == pytest.approx(69.5, abs=0.25)
    assert lengths[is_half].mean() == pytest.approx(34.5, abs=1.0)
    assert lengths[~is_half].std() == pytest.approx(5.0, abs=0.2)
    assert lengths.min() >= 20
    assert lengths.max() == 85


def test_every_epoch_is_cut_at_other_places():
    lengths = RandomLengths(17, 2.0, 0.25, lane_len=331, seed=7)
    epochs, step = [], 0
    while step < 200:
        epochs.append(lengths.find(step))
        step += len(epochs[-1][1]) - 1
    assert [epoch for epoch, _ in epochs] == list(range(len(epochs)))
    assert all((bounds[0], bounds[-1]) == (0, 331) for _, bounds in epochs)
    assert len({tuple(bounds[:5]) for _, bounds in epochs}) == len(epochs)


def test_random_lengths_of_a_step_do_not_depend_on_steps_read_before():
    whole = make_lanes("random").read_lengths(0, 200)
    for step in (150, 3, 61):
        found = make_lanes("random").read_lengths(step, 50)
        np.testing.assert_array_equal(found, whole[step : step + 50])
    assert (make_lanes("random", seed=8).read_lengths(0, 200) != whole).any()


def test_random_segments_have_one_shape_and_zeros_behind_the_split():
    lanes, n_behind = make_lanes("random after context"), 0
    for step in range(N_STEPS):
        segment = lanes.read(step)[0]
        assert segment.shape == (3, 11 + 17 + 6 + 1)
        is_behind = np.diff(segment) != 1
        assert not segment[:, 1:][is_behind].any()
        n_behind += is_behind.sum()
    assert n_behind > 0


@pytest.mark.parametrize(("std", "half_rate"), [(6.0, 0.0), (2.6, 0.25)])
def test_random_lengths_that_could_be_below_1_are_refused(std, half_rate):
    with pytest.raises(ValueError, match=r"`tgt_len` must leave each segment .* a token"):
        make_lanes("random", tgt_len_std=std, half_len_rate=half_rate)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tgt_len_std": -1.0}, "`tgt_len_std` of at least 0"),
        ({"half_len_rate": -0.1}, "`half_len_rate` from 0"),
        ({"tgt_len_std": 1.0, "tgt_len_schedule": ((10, 3),)}, "no `tgt_len_schedule`"),
        ({"extra_len": -1}, "`extra_len` must be an integer >= 0"),
    ],
)
def test_lengths_that_would_lose_tokens_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        TrainingLanes(Positions(997), n_lanes=3, tgt_len=11, **arguments)
