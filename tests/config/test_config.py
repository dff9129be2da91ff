import dataclasses
import inspect
import json

import numpy as np
import pytest

from txl_tf.config import AttentionSpan, EvalConfig, ModelConfig, TrainConfig
from txl_tf.config.training import RunOptions
from txl_tf.errors import UserError

CONFIGS = [
    ModelConfig(n_token=23, cutoffs=(5, 11), div_val=2, untie_r=True, layer_norm_epsilon=1e-5),
    AttentionSpan(mem_len=7, same_length=True, clamp_len=5, counts_self=True),
    TrainConfig(learning_rate=1e-3, warmup_steps=11, train_steps=13, seed=3, clamp_len=17),
    TrainConfig(tgt_len=5, tgt_len_schedule=((3, 2), (6, 3)), train_steps=7, remat=True),
    EvalConfig(eval_batch_size=2, tgt_len=3, mem_len=5, same_length=True, reset_at_documents=True),
]
BY_CLASS = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)


@BY_CLASS
def test_a_config_comes_back_from_json(config):
    text = json.dumps(config.to_json())
    assert type(config).from_json(text) == config
    assert len({config, type(config).from_json(json.loads(text))}) == 1


@pytest.mark.parametrize("cls", [ModelConfig, AttentionSpan, TrainConfig, EvalConfig, RunOptions])
def test_the_docstring_of_a_config_describes_each_field(cls):
    arguments = inspect.getdoc(cls).partition("Args:\n")[2]
    lines = [line.strip() for line in arguments.splitlines()]
    fields = dataclasses.fields(cls)
    assert lines[: len(fields)] == [f"{field.name}: {field.metadata['help']}" for field in fields]


def test_a_schedule_may_come_as_lists():
    config = TrainConfig(tgt_len=5, tgt_len_schedule=[[3, 2], [6, 3]])
    assert config == TrainConfig(tgt_len=5, tgt_len_schedule=((3, 2), (6, 3)))


@pytest.mark.parametrize(
    ("cls", "key", "nearest"),
    [(ModelConfig, "drop_out", "dropout"), (EvalConfig, "batch_size", "eval_batch_size")],
)
def test_an_unknown_key_names_the_nearest(cls, key, nearest):
    with pytest.raises(UserError, match=rf"^{cls.__name__} has no field `{key}`.*`{nearest}`"):
        cls.from_json({key: 3})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_token": 0}, r"`n_token` must be an integer >= 1. Received: n_token=0"),
        (
            {"n_token": 2**31},
            r"`n_token` must be an integer <= 2147483647. Received: .*=2147483648",
        ),
        ({"d_model": 2.0}, r"`d_model` must be an integer >= 1. Received: d_model=2.0"),
        ({"n_head": True}, r"`n_head` must be an integer >= 1. Received: n_head=True"),
        ({"d_head": "64"}, r"`d_head` must be .* Received: d_head='64'"),
        ({"cutoffs": (11, 5)}, r"`cutoffs` must be ascending .*cutoffs=\(11, 5\), n_token=23"),
        ({"cutoffs": (0, 5)}, r"`cutoffs` must be ascending"),
        (
            {"cutoffs": (5, 11), "div_val": 3, "d_embed": 8},
            r"`div_val` must leave .* div_val=3, cutoffs=\(5, 11\), d_embed=8",
        ),
        ({"untie_r": 1}, r"`untie_r` must be true or false. Received: untie_r=1"),
        ({"dropout": 1.0}, r"`dropout` must be in \[0, 1\). Received: dropout=1.0"),
        ({"dropout": float("nan")}, r"`dropout` must be a finite number. Received: dropout=nan"),
        ({"word_dropout": 1}, r"`word_dropout` must be in \[0, 1\). Received: word_dropout=1"),
        (
            {"input_dropout": -0.5},
            r"`input_dropout` must be in \[0, 1\), or -1 for that of `dropout`. "
            r"Received: input_dropout=-0.5",
        ),
        (
            {"locked_dropout": True, "dropout": 0.0},
            r"`locked_dropout` needs a rate above 0: .* Received: locked_dropout=True, dropout=0.0",
        ),
        ({"init_std": 0.0}, r"`init_std` must be positive. Received: init_std=0.0"),
        ({"layer_norm_epsilon": 0.0}, r"`layer_norm_epsilon` must be positive. Received: .*=0.0"),
    ],
)
def test_a_model_that_cannot_be_is_an_error(fields, message):
    with pytest.raises(UserError, match=message):
        ModelConfig(**{"n_token": 23} | fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mem_len": -1}, r"`mem_len` must be an integer >= 0. Received: mem_len=-1"),
        ({"same_length": 1}, r"`same_length` must be true or false. Received: same_length=1"),
        (
            {"mem_len": 0, "same_length": True},
            r"`mem_len` must be positive with `same_length`: each query .*: mem_len=0,",
        ),
        (
            {"mem_len": 1, "same_length": True, "counts_self": True},
            r"`mem_len` must be more than 1 with `same_length`: each query .*: mem_len=1,",
        ),
        ({"clamp_len": 0}, r"`clamp_len` must be -1 \(off\) or positive. Received: clamp_len=0"),
    ],
)
def test_a_span_that_cannot_be_is_an_error(fields, message):
    for cls in (AttentionSpan, TrainConfig, EvalConfig):
        with pytest.raises(UserError, match=message):
            cls(**{"mem_len": 7} | fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learning_rate": 0.0}, r"`learning_rate` must be positive. Received: learning_rate=0.0"),
        ({"clip": -0.25}, r"`clip` must be positive. Received: clip=-0.25"),
        ({"clip": np.float32("inf")}, r"`clip` must be a finite number"),
        ({"min_lr_ratio": 1.5}, r"`min_lr_ratio` must be in \[0, 1\]. Received: min_lr_ratio=1.5"),
        ({"train_steps": 0}, r"`train_steps` must be an integer >= 1"),
        ({"warmup_steps": 11, "train_steps": 7}, r"`train_steps` .* train_steps=7, warmup_st"),
        ({"seed": 2**32}, r"`seed` must be an integer <= 4294967295. Received: seed=4294967296"),
        ({"train_batch_size": 2**20 + 1}, r"`train_batch_size` must be an integer <= 1048576"),
        ({"tgt_len": 0}, r"`tgt_len` must be an integer >= 1. Received: tgt_len=0"),
        ({"seed": -1}, r"`seed` must be an integer >= 0. Received: seed=-1"),
        (
            {"optimizer": "adams"},
            r"`optimizer` must be one of .*lamb.* Received: optimizer='adams'",
        ),
        ({"optimizer": "lamb", "weight_decay": -0.1}, r"`weight_decay` must not be negative.*=-0"),
        ({"weight_decay": 0.1}, r"`weight_decay` must be 0 with adam; adamw.*_decay=0.1"),
        ({"weight_decay": float("nan")}, r"`weight_decay` must be a finite number"),
        ({"schedule": "step"}, r"`schedule` must be one of .*'wsd'.* Received: schedule='step'"),
        ({"schedule": "wsd"}, r"`decay_steps` must be positive with .* wsd.*=0, schedule='wsd'"),
        ({"decay_steps": 5}, r"`decay_steps` must be .* 0 otherwise.*=5, schedule='cosine'"),
        (
            {"schedule": "linear", "decay_steps": 5},
            r"`decay_steps` must be .* 0 otherwise.*=5, schedule='linear'",
        ),
        (
            {"schedule": "wsd", "warmup_steps": 6, "decay_steps": 5, "train_steps": 10},
            r"together must not exceed `train_steps`.*_steps=6, decay_steps=5, train_steps=10",
        ),
        ({"average_from": -1}, r"`average_from` must be an integer >= 0"),
        ({"average_from": 7, "train_steps": 7}, r"`average_from` must be less than .*=7, train_st"),
        ({"average_from": 7, "ema": 0.9}, r"`ema` and `average_from` cannot .* ema=0.9, average_f"),
        ({"ema": 1.0}, r"`ema` must be in \[0, 1\). Received: ema=1.0"),
        ({"ema": -0.1}, r"`ema` must be in \[0, 1\). Received: ema=-0.1"),
        ({"tgt_len_schedule": 3}, r"`tgt_len_schedule` must be pairs .* tgt_len_schedule=3"),
        (
            {"tgt_len_schedule": ((5, 7),), "train_steps": 5, "tgt_len": 7},
            r"at steps below `train_steps`\. .*=\(\(5, 7\),\), train_steps=5",
        ),
        ({"remat": 1}, r"`remat` must be true or false. Received: remat=1"),
    ],
)
def test_training_that_cannot_be_is_an_error(fields, message):
    with pytest.raises(UserError, match=message):
        TrainConfig(**fields)


@pytest.mark.parametrize("name", ["eval_batch_size", "tgt_len"])
def test_an_evaluation_that_cannot_be_is_an_error(name):
    with pytest.raises(UserError, match=rf"`{name}` must be an integer >= 1. Received: {name}=0"):
        EvalConfig(**{name: 0})


@pytest.mark.parametrize("cls", [TrainConfig, EvalConfig])
def test_memory_runs_on_over_documents_unless_asked_otherwise(cls):
    assert cls.from_json({"tgt_len": 3}).reset_at_documents is False
    with pytest.raises(UserError, match=r"`reset_at_documents` must be true or false.*=1"):
        cls(reset_at_documents=1)


@pytest.mark.parametrize("cls", [TrainConfig, EvalConfig])
def test_a_config_holds_a_span(cls):
    config = cls(mem_len=7, same_length=True, clamp_len=5)
    assert config.span == AttentionSpan(mem_len=7, same_length=True, clamp_len=5)
    counting = dataclasses.replace(config, counts_self=True)
    assert counting.span == dataclasses.replace(config.span, counts_self=True)


def test_bins_lie_between_the_cutoffs():
    config = ModelConfig(n_token=23, cutoffs=(5, 11))
    assert config.bins == ((0, 5), (5, 11), (11, 23))
    assert ModelConfig(n_token=23).bins == ((0, 23),)


def test_bins_narrow_by_the_divisor():
    config = ModelConfig(n_token=23, d_embed=50, cutoffs=(5, 11), div_val=3)
    assert [config.bin_width(index) for index in range(3)] == [50, 16, 5]


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[1]", "{}"),
        '{"n_token": 1' + "0" * 5000 + "}",
        '{"n_token": 27, "dropout": 1' + "0" * 400 + "}",
    ],
    ids=lambda text: text[:16],
)
def test_a_text_that_is_no_config_is_refused(text):
    with pytest.raises(UserError, match=r"ModelConfig|`dropout` must be a finite number"):
        ModelConfig.from_json(text)


def test_the_longest_segment_of_a_schedule_counts():
    training = TrainConfig(tgt_len=4, mem_len=3, tgt_len_schedule=((2, 12),))
    assert training.window_len == 12
    model = ModelConfig(n_token=5, encoding="shaw", n_positions=14)
    with pytest.raises(UserError, match=r"`n_positions` must be at least mem_len \+ tgt_len = 15 "):
        model.check_training(training)


def test_a_real_field_may_be_written_as_an_integer():
    found, expected = TrainConfig.from_json({"clip": 1}), TrainConfig(clip=1.0)
    assert json.dumps(found.to_json()) == json.dumps(expected.to_json())


@pytest.mark.filterwarnings("error")
def test_numbers_of_numpy_become_those_of_python():
    n_lanes = TrainConfig(train_batch_size=np.int64(3)).train_batch_size
    temperature = EvalConfig(temperature=np.float32(1.08)).temperature
    assert (type(n_lanes), n_lanes) == (int, 3)
    assert (type(temperature), temperature) == (float, pytest.approx(1.08))
    cutoffs = ModelConfig(n_token=23, cutoffs=tuple(np.array([5, 11]))).cutoffs
    assert json.dumps(cutoffs) == "[5, 11]"
