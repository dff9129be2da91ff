"""The config of a recurrent model, and runs; more are in tests/training/test_invariants.py."""

import dataclasses
import json

import numpy as np
import pytest
from small_lstm import CONFIG
from small_runs import (
    BATCH,
    TGT_LEN,
    TRAINING,
    Bare,
    Text,
    make_checkpointer,
    make_lanes,
    make_trainer,
    run_steps,
)

from txl_tf.config import EvalConfig, ModelConfig, TrainConfig
from txl_tf.errors import UserError
from txl_tf.runs.folder import RunConfig

MODEL = dataclasses.replace(CONFIG, init_std=0.5, proj_init_std=0.5)
CARRYING = dataclasses.replace(TRAINING, mem_len=0)
PERIODIC = dataclasses.replace(CARRYING, learning_rate=0.03, train_steps=300)
WITHOUT_EFFECT = {
    "n_head": 3,
    "d_head": 7,
    "d_inner": 17,
    "untie_r": True,
    "dropatt": 0.0,
    "qkv_dropout": 0.1,
    "layer_norm_epsilon": 1e-5,
}


@pytest.mark.parametrize("kind", ["lstm", "qrnn"])
def test_each_field_of_the_attention_is_refused(kind):
    for name, value in WITHOUT_EFFECT.items():
        message = rf"`{name}` has no effect with model_type={kind}. Received: {name}={value}"
        with pytest.raises(UserError, match=message):
            ModelConfig(n_token=23, model_type=kind, **{name: value})


def test_the_config_of_an_lstm_comes_back_from_json():
    content = json.loads(json.dumps(CONFIG.to_json()))
    assert not set(WITHOUT_EFFECT) & set(content)
    assert ModelConfig.from_json(content) == CONFIG


@pytest.mark.parametrize("part", ["training", "evaluation"])
def test_a_run_of_an_lstm_has_no_memory_length(part):
    parts = {"training": TrainConfig(mem_len=0), "evaluation": EvalConfig(mem_len=0)}
    RunConfig("words", CONFIG, **parts)
    parts[part] = dataclasses.replace(parts[part], mem_len=5)
    with pytest.raises(UserError, match=r"`mem_len` must be 0 with model_type=lstm.*mem_len=5"):
        RunConfig("words", CONFIG, **parts)


@pytest.mark.parametrize("kind", ["lstm", "qrnn"])
def test_a_period_longer_than_a_segment_is_learned(kind, one_replica):
    """Segments of 5 tokens of a text in which every 7th is 1, and the others 0."""
    lanes = make_lanes(PERIODIC, Text(np.arange(1500) % 7 == 0))
    model = dataclasses.replace(MODEL, cutoffs=(), div_val=1, d_model=16, model_type=kind)
    nats = run_steps(make_trainer(one_replica, model, PERIODIC), [300], lanes).nats
    n_tokens = BATCH * TGT_LEN
    assert nats[:5].mean() / n_tokens > 1
    # Where an epoch begins, the text jumps. Without a state, a 1 after a segment's first 0s would
    # cost log 2 and more.
    assert np.median(nats[-20:]) / n_tokens < 0.05


def test_a_checkpoint_of_a_transformer_is_refused_by_its_type(tmp_path, one_replica):
    run = Bare()
    make_checkpointer(tmp_path, run).save()
    trainer = make_trainer(one_replica, MODEL, CARRYING)
    message = r"another model: model_type is 'transformer_xl' there and 'lstm' here$"
    with pytest.raises(UserError, match=message):
        make_checkpointer(tmp_path, trainer).restore()
