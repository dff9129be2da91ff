import pytest


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of words whose records, with a split test, lie in its folder."""
    from small_commands import N_TEST, run_main, write_data, write_words  # need TensorFlow

    folder = tmp_path_factory.mktemp("evaluating")
    write_data(folder / "data")
    assert run_main(folder / "data", folder / "run") == 0
    write_words(folder / "run" / "records", valid=101, test=N_TEST)
    (folder / "run" / "data.json").unlink()  # as in an imported run
    return folder / "run"
