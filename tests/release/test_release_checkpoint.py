import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from places import GOLDEN
from small_release import write_checkpoint

from txl_tf.config import ModelConfig
from txl_tf.errors import UserError
from txl_tf.release import load_model
from txl_tf.release.names import SCOPE, list_entries

FOLDER = GOLDEN / "model"


def read_config(name):
    settings = json.loads((FOLDER / name / "config.json").read_text())
    known = {field.name for field in dataclasses.fields(ModelConfig)}
    return ModelConfig(**{key: value for key, value in settings.items() if key in known})


def read_weights(name):
    reader = tf.train.load_checkpoint(str(FOLDER / name / "model.ckpt-0"))
    return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}


def get_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_state_of_the_optimizer_is_passed_over(tmp_path):
    weights = read_weights("word_large")
    slots = {
        f"{key}/{slot}": value for key, value in weights.items() for slot in ("Adam", "Adam_1")
    }
    scalars = {"beta1_power": np.float32(0.9), "beta2_power": np.float32(0.999)}
    path = write_checkpoint(
        tmp_path / "m", weights | slots | scalars | {"global_step": np.int64(7)}
    )
    model = load_model(path, read_config("word_large"))
    for entry in list_entries(model):
        np.testing.assert_array_equal(entry.target, weights[SCOPE + entry.source])


def test_a_missing_weight_is_named(tmp_path):
    weights = read_weights("char")
    del weights["transformer/layer_1/ff/layer_2/bias"]
    path = write_checkpoint(tmp_path / "m", weights)
    with pytest.raises(UserError, match=r"transformer/layer_1/ff/layer_2/bias is missing") as error:
        load_model(path, read_config("char"))
    assert get_line(error).startswith(f"{path} does not fit the config: ")


def test_a_weight_of_another_shape_is_named(tmp_path):
    other = {"transformer/r_w_bias": np.zeros((8, 4), "float32")}  # transposed
    path = write_checkpoint(tmp_path / "m", read_weights("char") | other)
    message = r"transformer/r_w_bias is \[8, 4\], the model needs \[4, 8\]"
    with pytest.raises(UserError, match=message) as error:
        load_model(path, read_config("char"))
    get_line(error)


def test_a_missing_checkpoint_is_one_line(tmp_path):
    path = str(tmp_path / "absent" / "model.ckpt-0")
    with pytest.raises(UserError, match=r"^No TensorFlow checkpoint can be read at ") as error:
        load_model(path, read_config("char"))
    assert path in get_line(error)


def test_a_checkpoint_that_was_cut_is_refused(tmp_path):
    """As an interrupted download leaves it."""
    for part in (FOLDER / "char").glob("model.ckpt-0.*"):
        shutil.copy(part, tmp_path)
    data = tmp_path / "model.ckpt-0.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:3000])
    with pytest.raises(UserError, match=r"^No TensorFlow checkpoint can be read at ") as error:
        load_model(str(tmp_path / "model.ckpt-0"), read_config("char"))
    get_line(error)


def test_a_folder_that_tensorflow_reads_as_a_pattern_is_refused(tmp_path):
    shutil.copytree(FOLDER / "char", tmp_path / "run[1]")
    with pytest.raises(UserError) as error:
        load_model(str(tmp_path / "run[1]/model.ckpt-0"), read_config("char"))
    assert "must not contain *, ? or [" in get_line(error)
