import numpy as np
import pytest
from small_cached_model import make_model

from txl_tf.errors import UserError
from txl_tf.runs.array_store import ArrayStore, hash_weights

ARRAYS = {"a": np.arange(7, dtype=np.float32), "b": np.array(0.1)}


def test_arrays_are_found_by_their_settings(tmp_path):
    ArrayStore(str(tmp_path), {"seed": 1}).save("7", ARRAYS)
    found = ArrayStore(str(tmp_path), {"seed": 1}).load("7")
    assert list(found) == ["a", "b"]
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
    assert ArrayStore(str(tmp_path), {"seed": 2}).load("7") is None
    assert ArrayStore(str(tmp_path), {"seed": 1}).load("8") is None


def test_a_damaged_file_is_like_none(tmp_path):
    store = ArrayStore(str(tmp_path), {})
    store.save("7", ARRAYS)
    (path,) = tmp_path.glob("*/7.npz")
    for content in (path.read_bytes()[:50], path.read_bytes()[:-9], b""):
        path.write_bytes(content)
        assert store.load("7") is None


def test_without_a_folder_nothing_is_kept():
    store = ArrayStore(None, {})
    store.save("7", ARRAYS)
    assert store.load("7") is None


def test_arrays_that_cannot_be_kept_are_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"7.npz` cannot be written: Not a directory"):
        ArrayStore(str(tmp_path / "file"), {}).save("7", ARRAYS)


def test_changed_weights_have_another_hash():
    model = make_model()
    before = hash_weights(model)
    model.weights[0].assign(model.weights[0] + 1e-3)
    assert hash_weights(model) != before
