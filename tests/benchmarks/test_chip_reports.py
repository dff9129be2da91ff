"""Reports of programs for chips, without the compilers."""

import pytest

from benchmarks.chip_reports import Report, find_largest_batch


@pytest.mark.parametrize("refusal", ["with its memory", "without"])
@pytest.mark.parametrize("largest", [0, 1, 3, 61])
def test_the_largest_batch_is_found_in_a_few_compilations(largest, refusal):
    """The memory of a batch is 7 + 13 rows, and a little more for each further one."""
    tried = []
    measure = lambda rows: int(7 + 13 * rows + rows**2 / 100)  # noqa: E731
    limit = measure(largest) + 5

    def report_rows(rows):
        tried.append(rows)
        fits = measure(rows) <= limit
        size = measure(rows) if fits or refusal == "with its memory" else 0
        return Report("", "", "", 1, {}, fits=fits, temporary_bytes=size, tokens=rows)

    found = find_largest_batch(report_rows, limit)
    assert (found.tokens if found else 0) == largest
    assert len(tried) <= 7
