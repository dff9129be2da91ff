"""Stages of a run whose segments have different lengths."""

import re

import pytest

from txl_tf.config.stages import make_stages
from txl_tf.errors import UserError


@pytest.mark.parametrize(
    ("schedule", "tgt_len"), [((), 5), (((3, 2), (6, 3)), 5), (((7, 10),), 5), (((2, 5),), 5)]
)
def test_stages_count_the_tokens_of_all_steps_before(schedule, tgt_len):
    stages, tokens = make_stages(schedule, tgt_len), 0
    for step in range(23):
        length = next((length for end, length in schedule if step < end), tgt_len)
        (stage,) = [each for each in stages if each.first_step <= step][-1:]
        assert stage.tgt_len == length
        assert stage.count_tokens(step) == tokens
        tokens += length


@pytest.mark.parametrize(
    "schedule",
    [5, ((3, 2, 1),), ((3, 2.0),), ((True, 2),), ((0, 2),), ((3, 2), (3, 3)), ((6, 3), (3, 2))],
)
def test_a_schedule_against_the_rules_is_refused(schedule):
    received = re.escape(f"Received: tgt_len_schedule={schedule!r}")
    with pytest.raises(UserError, match=rf"pairs of a step and a length, .* ascending.*{received}"):
        make_stages(schedule, 5)


def test_a_stage_does_not_begin_within_one_of_its_segments():
    with pytest.raises(
        UserError,
        match=r"`tgt_len_schedule` .* multiple of the next one\. Received: step 7, where it has "
        r"read 18 tokens, and the length 5\. The nearest steps that fit: 6 and 11$",
    ):
        make_stages(((3, 2), (7, 3)), 5)


def fits(schedule, tgt_len):
    try:
        make_stages(schedule, tgt_len)
    except UserError:
        return False
    return True


@pytest.mark.parametrize(
    ("before", "length", "after"), [(2, 4, 9), (6, 4, 9), (2, 6, 1), (1, 6, 9)]
)
def test_the_steps_said_to_fit_are_the_nearest(before, length, after):
    """Compared with all steps up to twice the period, by trial."""
    for step in range(4, 20):
        schedule = ((3, before), (step, length))
        if not fits(schedule[:1], length) or fits(schedule, after):
            continue
        with pytest.raises(UserError) as error:
            make_stages(schedule, after)
        found = [int(text) for text in str(error.value).rpartition(": ")[2].split(" and ")]
        fitting = [each for each in range(4, 40) if fits(((3, before), (each, length)), after)]
        below, above = ([s for s in fitting if s < step], [s for s in fitting if s > step])
        assert found == [*below[-1:], *above[:1]]
