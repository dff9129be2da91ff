"""How steps are divided into calls, by durations that a test sets."""

from txl_tf.training.intervals import Pace


def run_calls(pace, *, step_seconds, compile_seconds=0.0, changes=()):
    """Returns first step and length of each call; the next is planned before one is made."""
    calls, ahead = [], pace.plan()
    while ahead:
        (start, n_steps), ahead = ahead, None if pace.is_planned else pace.plan()
        calls.append((start, n_steps))
        is_compiled = start in (0, *changes)
        pace.note(compile_seconds * is_compiled + n_steps * step_seconds(start), n_steps)
    return calls


def test_without_a_limit_calls_end_at_stops_and_changes():
    pace = Pace(2, [5, 11, 17], float("inf"), changes=(1, 2, 7, 11, 13, 17, 23))
    calls = run_calls(pace, step_seconds=lambda _: 1.0)
    assert calls == [(2, 3), (5, 2), (7, 4), (11, 2), (13, 4)]
    assert pace.longest == 4


def test_calls_take_about_as_long_as_they_may():
    pace = Pace(0, [100], 10.0)
    calls = run_calls(pace, step_seconds=lambda _: 1.0, compile_seconds=3.0)
    # What is compiled says nothing; one call is under way and one planned when the first is known.
    assert calls == [(0, 1), (1, 1), (2, 1), *[(start, 10) for start in range(3, 93, 10)], (93, 7)]


def test_the_speed_is_forgotten_where_the_length_changes():
    pace = Pace(0, [100], 10.0, changes=(50,))
    calls = run_calls(
        pace,
        step_seconds=lambda start: 0.5 if start < 50 else 2.0,
        compile_seconds=3.0,
        changes=(50,),
    )
    before = [call for call in calls if call[0] < 50]
    after = calls[len(before) :]
    assert before == [(0, 1), (1, 1), (2, 1), (3, 20), (23, 20), (43, 7)]
    expected = [(50, 1), (51, 1), (52, 1), *[(start, 5) for start in range(53, 98, 5)], (98, 2)]
    assert after == expected
