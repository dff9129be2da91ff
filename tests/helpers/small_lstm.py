"""Tiny recurrent language models that tests share."""

import dataclasses

import numpy as np

from txl_tf.config import ModelConfig
from txl_tf.lab.baselines.lstm import LSTMModel
from txl_tf.lab.baselines.qrnn import QRNNModel

VOCABULARY = 23
# Two bins of other widths, and projections: all kinds of weights.
CONFIG = ModelConfig(
    n_token=VOCABULARY,
    n_layer=2,
    d_model=6,
    d_embed=8,
    cutoffs=(7, 13),
    div_val=2,
    dropout=0.0,
    model_type="lstm",
)
QRNN_CONFIG = dataclasses.replace(CONFIG, model_type="qrnn")
# Where documents begin in two rows of 15 tokens.
STARTS = np.array([np.isin(np.arange(15), places) for places in ([4, 9, 10], [0, 9])])


def make_model(config=CONFIG, **kwargs):
    """Returns a model whose weights are all random and large enough to matter."""
    make = {"lstm": LSTMModel, "qrnn": QRNNModel}[config.model_type]
    model, rng = make(config, seed=1, **kwargs), np.random.default_rng(7)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(scale=0.5, size=variable.shape))
    return model


def make_ids(length=15, *, batch=2, seed=3):
    return np.random.default_rng(seed).integers(VOCABULARY, size=(batch, length), dtype="int32")
