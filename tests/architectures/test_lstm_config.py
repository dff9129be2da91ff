"""The config of an LSTM, and of the runs of one."""

import dataclasses
import json

import pytest
from small_lstm import CONFIG

from txl_tf.config import EvalConfig, ModelConfig, TrainConfig
from txl_tf.errors import UserError
from txl_tf.runs.folder import RunConfig

WITHOUT_EFFECT = {
    "n_head": 3,
    "d_head": 7,
    "d_inner": 17,
    "untie_r": True,
    "dropatt": 0.0,
    "qkv_dropout": 0.1,
    "layer_norm_epsilon": 1e-5,
}


def test_each_field_of_the_attention_is_refused():
    for name, value in WITHOUT_EFFECT.items():
        message = rf"`{name}` has no effect with model_type=lstm. Received: {name}={value}"
        with pytest.raises(UserError, match=message):
            ModelConfig(n_token=23, model_type="lstm", **{name: value})


def test_the_config_of_an_lstm_comes_back_from_json():
    content = json.loads(json.dumps(CONFIG.to_json()))
    assert not set(WITHOUT_EFFECT) & set(content)
    assert ModelConfig.from_json(content) == CONFIG


def test_the_config_of_a_transformer_is_written_as_before():
    content = ModelConfig(n_token=23).to_json()
    assert "model_type" not in content
    assert set(WITHOUT_EFFECT) < set(content)


@pytest.mark.parametrize("part", ["training", "evaluation"])
def test_a_run_of_an_lstm_has_no_memory_length(part):
    parts = {"training": TrainConfig(mem_len=0), "evaluation": EvalConfig(mem_len=0)}
    RunConfig("words", CONFIG, **parts)
    parts[part] = dataclasses.replace(parts[part], mem_len=5)
    with pytest.raises(UserError, match=r"`mem_len` must be 0 with model_type=lstm.*mem_len=5"):
        RunConfig("words", CONFIG, **parts)
