import numpy as np
import pytest

from txl_tf.layers import make_position_table


def make_by_hand(length, width, clamp_len):
    """One distance and frequency at a time, in float64."""
    rows = []
    for distance in reversed(range(length)):
        clamped = min(distance, clamp_len) if clamp_len > 0 else distance
        angles = [clamped * 10000.0 ** (-2 * i / width) for i in range(width // 2)]
        rows.append([*map(np.sin, angles), *map(np.cos, angles)])
    return rows


@pytest.mark.parametrize("clamp_len", [-1, 1, 5, 11])
@pytest.mark.parametrize(("length", "width"), [(1, 2), (7, 10), (13, 22)])
def test_rows_are_the_sinusoids_of_falling_distances(length, width, clamp_len):
    table = make_position_table(length, width, clamp_len=clamp_len)
    # float32 powers, and angles up to 12.
    np.testing.assert_allclose(table, make_by_hand(length, width, clamp_len), rtol=0, atol=1e-5)


def test_far_distances_are_exact_enough():
    # An angle of 4,000 in float32 is known to 2.5e-4, and so is its sine.
    np.testing.assert_allclose(
        make_position_table(4001, 6), make_by_hand(4001, 6, -1), rtol=0, atol=5e-4
    )
