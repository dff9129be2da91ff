"""Chooses the model class by `ModelConfig.model_type`; no other module does."""

from typing import Any

from txl_tf.baselines.cached_recurrent import CachedRecurrent
from txl_tf.baselines.lstm import LSTMModel
from txl_tf.baselines.qrnn import QRNNModel
from txl_tf.baselines.recurrent import RecurrentModel
from txl_tf.cached_model import CachedModel, SegmentReader
from txl_tf.config import LSTM, QRNN, TRANSFORMER_XL, AttentionSpan, ModelConfig
from txl_tf.errors import UserError
from txl_tf.model import TransformerXL
from txl_tf.segment_model import SegmentModel

_MODELS = {TRANSFORMER_XL: TransformerXL, LSTM: LSTMModel, QRNN: QRNNModel}
# The tasks that need a Transformer-XL, and why.
_REASONS = {
    "generation": "its loop keeps keys and values",
    "an export": "its graphs keep keys and values",
    "an analysis of attention": "recurrent models have no attention",
    "quantization": "recurrent models have no layers with narrow kernels",
    "the 2019 release": "its code has no other model",
}


def make_model(config: ModelConfig, *, dtype: Any = "float32", **kwargs: Any) -> SegmentModel:
    """Returns a new model of a config; the other arguments are those of its class.

    Unlike its class, it does not take the dtype policy from the settings of Keras: the numbers of
    a run depend on the run alone.
    """
    return _MODELS[config.model_type](config, dtype=dtype, **kwargs)


def make_cached_model(
    model: SegmentModel, span: AttentionSpan, tgt_len: int, **kwargs: Any
) -> SegmentReader:
    """Returns the reader of a model with frozen weights; the arguments are those of its class."""
    reader = CachedRecurrent if isinstance(model, RecurrentModel) else CachedModel
    return reader(model, span, tgt_len, **kwargs)


def check_transformer(config: ModelConfig, task: str) -> None:
    """Raises a `UserError` if a model is not a Transformer-XL; `task` is a key of `_REASONS`."""
    if config.is_recurrent:
        raise UserError(
            f"{task} needs model_type={TRANSFORMER_XL}: {_REASONS[task]}. "
            f"Received: model_type={config.model_type}"
        )
