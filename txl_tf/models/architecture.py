"""Chooses the model class by `ModelConfig.model_type`; no other module does."""

import pkgutil
from typing import Any

from txl_tf.config import LSTM, QRNN, TRANSFORMER_XL, AttentionSpan, ModelConfig
from txl_tf.errors import UserError
from txl_tf.models.cached_model import FrozenModel
from txl_tf.models.segment_model import SegmentModel

# The classes of the models, and of the same models with frozen weights. They are imported on use,
# because txl_tf.lab depends on this module.
_BASELINES = "txl_tf.lab.baselines"
_MODELS = {
    TRANSFORMER_XL: "txl_tf.models.transformer_xl:TransformerXL",
    LSTM: f"{_BASELINES}.lstm:LSTMModel",
    QRNN: f"{_BASELINES}.qrnn:QRNNModel",
}
_FROZEN = {
    TRANSFORMER_XL: "txl_tf.models.cached_model:CachedModel",
    LSTM: f"{_BASELINES}.cached_recurrent:CachedRecurrent",
    QRNN: f"{_BASELINES}.cached_recurrent:CachedRecurrent",
}
# The tasks that need a Transformer-XL, and why.
_REASONS = {
    "generation": "its loop keeps keys and values",
    "an export": "its graphs keep keys and values",
    "an analysis of attention": "recurrent models have no attention",
    "quantization": "recurrent models have no layers with narrow kernels",
    "the 2019 release": "its code has no other model",
}


def make_model(config: ModelConfig, *, dtype: Any = "float32", **kwargs: Any) -> SegmentModel:
    """Returns a new model for a config; other arguments are passed to its class.

    Unlike the class, it does not default to the global dtype policy of Keras: the results of a run
    depend on the run alone.
    """
    return pkgutil.resolve_name(_MODELS[config.model_type])(config, dtype=dtype, **kwargs)


def make_frozen_model(
    model: SegmentModel, span: AttentionSpan, tgt_len: int, **kwargs: Any
) -> FrozenModel:
    """Returns the form of a model that reads with frozen weights; arguments go to its class."""
    return pkgutil.resolve_name(_FROZEN[model.config.model_type])(model, span, tgt_len, **kwargs)


def check_transformer(config: ModelConfig, task: str) -> None:
    """Raises a `UserError` if a model is not a Transformer-XL; `task` is a key of `_REASONS`."""
    if config.is_recurrent:
        raise UserError(
            f"{task} needs model_type={TRANSFORMER_XL}: {_REASONS[task]}. "
            f"Received: model_type={config.model_type}"
        )
