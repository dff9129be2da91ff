"""Transformer-XL (Dai et al. 2019) in TensorFlow 2 and Keras: language models with memory.

Submodules are imported on first use; `__init__.pyi` lists their names for type checkers. Configs,
presets and data need no Keras backend; the model, its layers and `CausalLM` need TensorFlow or JAX;
everything else needs TensorFlow.
"""

import importlib
from typing import Any

from txl_tf.version import __version__

_PLACES = {
    "AttentionSpan": "txl_tf.config",
    "CausalLM": "txl_tf.causal_lm",
    "DynamicConfig": "txl_tf.config",
    "EvalConfig": "txl_tf.config",
    "LanguageModel": "txl_tf.language_model",
    "ModelConfig": "txl_tf.config",
    "Segments": "txl_tf.data.lanes.segments",
    "TrainConfig": "txl_tf.config",
    "TransformerXL": "txl_tf.models.transformer_xl",
    "UserError": "txl_tf.errors",
    "extend_vocabulary": "txl_tf.vocabulary_extension",
    "load": "txl_tf.language_model",
}
_NEED_KERAS = ("CausalLM", "Segments", "TransformerXL", "layers")
_NEED_TENSORFLOW = ("LanguageModel", "extend_vocabulary", "load", "release", "training")
_SUBMODULES = ("data", "layers", "presets", "release", "training")

__all__ = ["__version__", *_PLACES, *_SUBMODULES]


def __getattr__(name: str) -> Any:
    from txl_tf.quiet_start import check_backend, hide_remarks, import_name

    if name in _NEED_TENSORFLOW:
        check_backend()
    if name in _NEED_KERAS:
        check_backend("jax")
    if name in (*_NEED_KERAS, *_NEED_TENSORFLOW):
        hide_remarks()
    if name in _SUBMODULES:
        return importlib.import_module(f"txl_tf.{name}")
    return import_name(__name__, _PLACES, name)


def __dir__() -> list[str]:
    return __all__
