import json

import numpy as np
import pytest
import tensorflow as tf

from txl_tf.errors import UserError
from txl_tf.server.served_folder import ServedFolder, find_name


@pytest.fixture(scope="module")
def folder(words):
    return words


def test_a_signature_gives_what_it_gives_without_a_server(folder, exported):
    expected = tf.saved_model.load(exported).signatures["score_text"](
        texts=tf.constant(["the cat sat", "a"])
    )
    found = folder.call("score_text", {"texts": np.array([b"the cat sat", b"a"], object)})
    assert set(found) == set(expected)
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name].numpy(), err_msg=name)


def test_a_folder_has_its_name_unless_another_is_given():
    assert find_name("exported/mats", None) == "mats"
    assert find_name("exported/mats/", None) == "mats"
    assert find_name("exported/mats", "dogs") == "dogs"


def test_only_a_model_without_vocabulary_has_no_sessions(folder, monkeypatch):
    assert folder.has_sessions
    monkeypatch.setattr(folder, "vocabulary", None)
    assert not folder.has_sessions


@pytest.mark.parametrize("content", [None, b"", b"no graph"])
def test_a_folder_that_holds_no_model_is_refused(content, tmp_path):
    if content is not None:
        (tmp_path / "saved_model.pb").write_bytes(content)
    with pytest.raises(UserError, match=r"is not a SavedModel, which `txl_tf.export` writes: "):
        ServedFolder(str(tmp_path), None, max_length=13, max_bytes=10_000)


def test_a_vocabulary_that_is_none_is_refused(tmp_path):
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "vocabulary.json").write_text(json.dumps({"level": "word"}))
    with pytest.raises(UserError, match=r"vocabulary.json` is not a vocabulary"):
        ServedFolder(str(tmp_path), None, max_length=13, max_bytes=10_000)


@pytest.mark.parametrize(("name", "version"), [("dogs", None), ("mats", 2), ("mats", "x")])
def test_another_model_is_not_found(folder, name, version):
    with pytest.raises(UserError, match="the server has version 1 of the model 'mats'") as raised:
        folder.check_name(name, version)
    assert raised.value.status == 404


def test_a_model_may_be_asked_for_with_its_version(folder):
    for version in (None, 1, "1"):
        folder.check_name("mats", version)


@pytest.mark.parametrize("name", ["dogs", "", None, ["step"]])
def test_an_unknown_signature_is_refused(folder, name):
    with pytest.raises(UserError, match="`signature_name` must be one of generate_text, "):
        folder.get_inputs(name)


GENERATION = {"text": b"the", "length": 3, "temperature": 1.0, "top_k": 0, "seed": 0}


@pytest.mark.parametrize(
    ("signature", "inputs", "message"),
    [
        ("score_text", {"texts": [b"the dog"]}, "a text holds a symbol that the vocabulary does"),
        ("score_text", {"texts": [b"\xff"]}, "Invalid formatting on input string"),
        ("score_ids", {"ids": [[1, 7]], "lengths": [2]}, "`ids` must be at least 0 and below 7"),
        ("generate_text", {**GENERATION, "text": b""}, "`text` must hold at least one token"),
        ("generate_text", {**GENERATION, "temperature": -1.0}, "`temperature` must be 0 or more"),
        (
            "generate_text",
            {**GENERATION, "length": 1001},
            "`length` must be at most 1,000. Received: 1001",
        ),
        ("initial_memory", {"batch_size": -1}, "Dimension -1 must be >= 0"),
    ],
)
def test_wrong_input_is_one_line(folder, signature, inputs, message):
    arrays = {
        name: np.array(value, object if name in ("text", "texts") else None)
        for name, value in inputs.items()
    }
    with pytest.raises(UserError) as raised:
        folder.call(signature, arrays)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_a_few_bytes_do_not_ask_for_much_memory(folder):
    """`initial_memory` makes what its only input says."""
    n_rows = 10_000 // folder.memory_bytes
    folder.call("initial_memory", {"batch_size": np.array(n_rows)})
    with pytest.raises(UserError, match=f"`batch_size` must be at most {n_rows}: a row takes"):
        folder.call("initial_memory", {"batch_size": np.array(n_rows + 1)})
