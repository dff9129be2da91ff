import pytest


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Tiny records of words, which tests only read."""
    from small_runs import make_records  # needs TensorFlow: see tests/conftest.py

    return make_records(tmp_path_factory.mktemp("data") / "data")
