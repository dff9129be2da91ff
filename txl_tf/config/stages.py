"""Segment lengths that change during a training run."""

import itertools
import math
from typing import Any, NamedTuple

from txl_tf.config.base import MAX_INTEGER
from txl_tf.errors import UserError


class Stage(NamedTuple):
    """A range of steps with one segment length T; lanes read `first_token` tokens before it."""

    first_step: int
    first_token: int
    tgt_len: int

    def count_tokens(self, step: int) -> int:
        """Returns the number of tokens that a lane has read before a step of this stage."""
        return self.first_token + (step - self.first_step) * self.tgt_len


def make_stages(schedule: tuple[tuple[int, int], ...], tgt_len: int) -> tuple[Stage, ...]:
    """Returns the stages of a run; the last one has no end.

    Args:
        schedule: Pairs of a step and the segment length before that step.
        tgt_len: The segment length from the last of these steps on.

    Raises:
        UserError: If the steps are not ascending, a value is not an integer from 1 to
            `MAX_INTEGER`, or a stage would begin within one of its segments.

    >>> make_stages(((100, 32), (200, 64)), 128)[-1]
    Stage(first_step=200, first_token=9600, tgt_len=128)

    References:
        Press et al. 2021, Shortformer, https://arxiv.org/abs/2012.15832 (staged training).
    """
    if not _is_schedule(schedule):
        raise UserError(
            "`tgt_len_schedule` must be pairs of a step and a length, integers from 1 to "
            f"{MAX_INTEGER}, with ascending steps. Received: tgt_len_schedule={schedule!r}"
        )
    lengths = [*(length for _, length in schedule), tgt_len]
    stages = [Stage(0, 0, lengths[0])]
    for (step, _), length in zip(schedule, lengths[1:], strict=True):
        stages.append(Stage(step, stages[-1].count_tokens(step), length))
        _check_start(stages[-1], stages[-2])
    return tuple(stages)


def find_longest(tgt_len: int, std: float) -> int:
    """Returns the longest random segment length, three standard deviations above the mean.

    >>> find_longest(70, 5.0)
    85
    """
    return tgt_len + math.floor(3 * std)


def find_shortest(tgt_len: int, std: float, half_rate: float) -> float:
    """Returns the lower bound of random segment lengths, before they are rounded down.

    >>> find_shortest(70, 5.0, 0.05)
    20.0
    """
    return tgt_len / (2 if half_rate else 1) - 3 * std


def find_stage(stages: tuple[Stage, ...], step: int) -> Stage:
    """Returns the stage of a step.

    >>> find_stage(make_stages(((100, 32),), 64), 100).tgt_len
    64
    """
    *_, stage = (stage for stage in stages if stage.first_step <= step)
    return stage


def _is_schedule(schedule: Any) -> bool:
    if not isinstance(schedule, tuple):
        return False
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in schedule):
        return False
    values = [value for pair in schedule for value in pair]
    steps = [step for step, _ in schedule]
    are_integers = all(type(value) is int and 1 <= value <= MAX_INTEGER for value in values)
    return are_integers and all(low < high for low, high in itertools.pairwise(steps))


def _check_start(stage: Stage, before: Stage) -> None:
    """Checks that the text before a stage is a whole number of segments of its length.

    One of its segments then ends where an epoch ends, as for all other lengths.
    """
    if stage.first_token % stage.tgt_len == 0:
        return
    # One of `period` consecutive steps fits.
    period = stage.tgt_len // math.gcd(stage.tgt_len, before.tgt_len)
    late = stage.first_token // before.tgt_len % period
    fitting = [stage.first_step - late, stage.first_step - late + period]
    nearest = " and ".join(str(step) for step in fitting if step > before.first_step)
    raise UserError(
        "`tgt_len_schedule` must change the length where a lane has read a multiple of the next "
        f"one. Received: step {stage.first_step}, where it has read {stage.first_token} tokens, "
        f"and the length {stage.tgt_len}. The nearest steps that fit: {nearest}"
    )
