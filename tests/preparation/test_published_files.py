import re

import pytest

from txl_tf.preparation.published_files import PUBLISHED_FILES


def list_files():
    return [
        pytest.param(file, id=f"{dataset}-{file.name}")
        for dataset, files in PUBLISHED_FILES.items()
        for file in files
    ]


@pytest.mark.parametrize("file", list_files())
def test_a_published_file_has_mirrors_and_a_hash(file):
    assert file.urls
    assert all(re.fullmatch(r"https?://[\w./~%-]+", url) for url in file.urls)
    assert len(set(file.urls)) == len(file.urls)
    assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
    assert all(url.endswith(file.name) for url in file.urls)
