import pytest
from small_language_model import WORDS, make_model

from txl_tf.apps.server.served_folder import ServedFolder


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """The path of a SavedModel of words."""
    path = tmp_path_factory.mktemp("exported") / "mats"
    make_model(7, vocabulary=WORDS, same_length=True).export(path)
    return str(path)


@pytest.fixture(scope="session")
def words(exported):
    return ServedFolder(exported, None, max_length=1000, max_bytes=10_000)
