"""A tiny model, ids and tolerances that the tests of the model share."""

import numpy as np
import pytest
from tables import slow_after

from txl_tf.config import ModelConfig
from txl_tf.models.transformer_xl import TransformerXL

# float32, summed in another order; the golden numbers themselves hold 2e-5 and 1e-4.
LOSS_TOLERANCE = 2e-5
GRADIENT_TOLERANCE = 1e-4
# Hidden states are of the order of 1 and go through three layers in float32.
SAME = {"rtol": 0, "atol": 2e-5}
BATCH, LENGTH, VOCABULARY = 2, 5, 23
COMPILED = pytest.mark.parametrize("jit", slow_after(1, [False, True]), ids=["plain", "compiled"])


def make_config(**changes):
    fields = {
        "n_token": VOCABULARY,
        "n_layer": 3,
        "d_model": 10,
        "d_embed": 10,
        "n_head": 3,
        "d_head": 7,
        "d_inner": 17,
        "dropout": 0.0,
        "dropatt": 0.0,
    }
    return ModelConfig(**fields | changes)


def make_model(*, dtype=None, remat=False, **changes):
    """Returns a model whose weights are all random and large enough to matter."""
    model, rng = (
        TransformerXL(make_config(**changes), seed=1, remat=remat, dtype=dtype),
        np.random.default_rng(7),
    )
    for variable in model.trainable_variables:
        variable.assign(rng.normal(scale=0.5, size=variable.shape))
    return model


def make_ids(length=LENGTH, *, batch=BATCH):
    return np.random.default_rng(3).integers(VOCABULARY, size=(batch, length), dtype="int32")


def read(model, ids, tgt_len, span, *, mask_empty=False):
    """Returns the hidden states of a text read in segments, from an empty memory."""
    memory, parts = model.initial_memory(len(ids), span.mem_len, mask_empty), []
    for start in range(0, ids.shape[1], tgt_len):
        hidden, memory = model(ids[:, start : start + tgt_len], memory, span=span)
        parts.append(np.asarray(hidden))
    return np.concatenate(parts, axis=1)
