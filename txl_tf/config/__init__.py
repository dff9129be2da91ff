"""Hyper-parameters as frozen, checked dataclasses with the names of the 2019 release."""

from txl_tf.config.dynamic import DynamicConfig
from txl_tf.config.model import LSTM, QRNN, SHAPELESS, TRAINED_WITH, TRANSFORMER_XL, ModelConfig
from txl_tf.config.span import (
    DEFAULT_TEMPERATURE,
    DEFAULT_TOP_K,
    KERNEL_DTYPES,
    MAX_SAMPLING_SEED,
    AttentionSpan,
    EvalConfig,
)
from txl_tf.config.training import JIT_MODES, TrainConfig

__all__ = [
    "DEFAULT_TEMPERATURE",
    "DEFAULT_TOP_K",
    "JIT_MODES",
    "KERNEL_DTYPES",
    "LSTM",
    "MAX_SAMPLING_SEED",
    "QRNN",
    "SHAPELESS",
    "TRAINED_WITH",
    "TRANSFORMER_XL",
    "AttentionSpan",
    "DynamicConfig",
    "EvalConfig",
    "ModelConfig",
    "TrainConfig",
]
