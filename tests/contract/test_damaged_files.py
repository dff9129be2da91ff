"""Damaged files are refused in one line, or read; `tests.soak.damaged_files` tries many more."""

import pytest

from tests.soak import damaged_files


@pytest.mark.parametrize("kind", damaged_files.KINDS)
def test_damaged_file_is_refused_or_read(kind):
    n_files = 5

    counts, faults = damaged_files.try_files(kind, range(n_files))

    assert not faults
    assert counts.total() == n_files
