import threading
import time

import pytest

from txl_tf.data.parallel import map_ordered


@pytest.mark.parametrize("n_threads", [1, 7])
@pytest.mark.parametrize("n_items", [0, 53])
def test_results_come_in_the_order_of_the_items(n_threads, n_items):
    def square_late(number):
        time.sleep((number % 3) / 1000)
        return number**2

    found = list(map_ordered(square_late, range(n_items), n_threads))
    assert found == [number**2 for number in range(n_items)]


@pytest.mark.parametrize(("n_threads", "ahead"), [(1, 0), (3, 3)])
def test_a_few_items_only_are_taken_ahead(n_threads, ahead):
    taken = []
    items = (taken.append(number) or number for number in range(101))
    results = map_ordered(lambda number: number, items, n_threads)
    for number in range(11):
        assert next(results) == number
        assert len(taken) == number + 1 + ahead


def test_items_are_worked_on_side_by_side():
    barrier = threading.Barrier(3, timeout=30)
    assert len(list(map_ordered(lambda number: barrier.wait(), range(3), 3))) == 3


@pytest.mark.parametrize("n_threads", [1, 3])
def test_an_error_of_the_function_comes_in_order(n_threads):
    def invert(number):
        return 1 / number

    results = map_ordered(invert, [5, 2, 0, 1], n_threads)
    assert [next(results), next(results)] == [0.2, 0.5]
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        next(results)


def test_an_error_of_the_items_is_passed_on():
    def iterate_items():
        yield 5
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(map_ordered(abs, iterate_items(), 3))


def test_no_thread_is_left_when_the_results_are_not_wanted():
    n_before = threading.active_count()
    results = map_ordered(abs, range(101), 5)
    next(results)
    results.close()
    assert threading.active_count() == n_before
