import pytest

from benchmarks import off_python
from benchmarks.works import Shape


@pytest.mark.slow
def test_our_own_loop_draws_at_a_speed():
    shape = Shape(1, 6, 3, 7, 1, 11, 1, 13)
    speed = off_python.measure_own(shape, "float32", 64)
    assert speed["best"] >= speed["median"] > 0
