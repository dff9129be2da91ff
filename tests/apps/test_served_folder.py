import json

import numpy as np
import pytest
import tensorflow as tf

from txl_tf.apps.server.served_folder import ServedFolder, find_name
from txl_tf.errors import UserError


def test_a_signature_gives_what_it_gives_without_a_server(words, exported):
    expected = tf.saved_model.load(exported).signatures["score_text"](
        texts=tf.constant(["the cat sat", "a"])
    )
    found = words.call("score_text", {"texts": np.array([b"the cat sat", b"a"], object)})
    assert set(found) == set(expected)
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name].numpy(), err_msg=name)


def test_a_folder_has_its_name_unless_another_is_given():
    assert find_name("exported/mats", None) == "mats"
    assert find_name("exported/mats/", None) == "mats"
    assert find_name("exported/mats", "dogs") == "dogs"


@pytest.mark.parametrize("content", [None, b"no graph"])
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


@pytest.mark.parametrize(("name", "version"), [("dogs", None), ("mats", 2)])
def test_another_model_is_not_found(words, name, version):
    with pytest.raises(UserError, match="the server has version 1 of the model 'mats'") as raised:
        words.check_name(name, version)
    assert raised.value.status == 404


@pytest.mark.parametrize("name", ["dogs", ["step"]])
def test_an_unknown_signature_is_refused(words, name):
    with pytest.raises(UserError, match="`signature_name` must be one of generate_text, "):
        words.get_inputs(name)


GENERATION = {"text": b"the", "length": 3, "temperature": 1.0, "top_k": 0, "seed": 0}


@pytest.mark.parametrize(
    ("signature", "inputs", "message"),
    [
        ("score_text", {"texts": [b"the dog"]}, "a text holds a symbol that the vocabulary does"),
        ("score_text", {"texts": [b"\xff"]}, "Invalid formatting on input string"),
        ("score_ids", {"ids": [[1, 7]], "lengths": [2]}, "`ids` must be at least 0 and below 7"),
        ("generate_text", {**GENERATION, "text": b""}, "`text` must hold at least one token"),
        (
            "generate_text",
            {**GENERATION, "length": 1001},
            "`length` must be at most 1,000. Received: 1001",
        ),
    ],
)
def test_wrong_input_is_one_line(words, signature, inputs, message):
    arrays = {
        name: np.array(value, object if name in ("text", "texts") else None)
        for name, value in inputs.items()
    }
    with pytest.raises(UserError) as raised:
        words.call(signature, arrays)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_a_few_bytes_do_not_ask_for_much_memory(words):
    """`initial_memory` makes what its only input says."""
    n_rows = 10_000 // words.memory_bytes
    words.call("initial_memory", {"batch_size": np.array(n_rows)})
    with pytest.raises(UserError, match=f"`batch_size` must be at most {n_rows}: a row takes"):
        words.call("initial_memory", {"batch_size": np.array(n_rows + 1)})
