"""Tables of test cases."""

import pytest

_Case = type(pytest.param())


def slow_after(count, cases):
    """Returns the cases of a table, those after the first ones marked slow.

    Args:
        count: The number of cases that `make test` runs.
        cases: As for `pytest.mark.parametrize`; tuples hold the values of several names.
    """
    return [case if index < count else _mark(case) for index, case in enumerate(cases)]


def _mark(case):
    if not isinstance(case, _Case):
        case = pytest.param(*(case if isinstance(case, tuple) else (case,)))
    return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.slow])
