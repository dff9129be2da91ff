import pytest
from small_jobs import make_records


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Tiny records of words, which tests only read."""
    return make_records(tmp_path_factory.mktemp("data") / "data")
