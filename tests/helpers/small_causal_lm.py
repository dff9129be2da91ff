"""A tiny `CausalLM`, its text and its data; also on JAX, where TensorFlow may be missing."""

import keras
import numpy as np

from txl_tf import AttentionSpan, CausalLM, ModelConfig, Segments

VOCABULARY, BATCH, LENGTH, MEMORY = 23, 6, 5, 7
SPAN = AttentionSpan(mem_len=MEMORY)
CONFIG = ModelConfig(
    n_token=VOCABULARY,
    n_layer=2,
    d_model=8,
    d_embed=8,
    n_head=3,
    d_head=5,
    d_inner=11,
    dropout=0.0,
    dropatt=0.0,
    init_std=0.3,
)
IDS = np.random.default_rng(5).integers(0, VOCABULARY, 600)  # 20 segments


def make_segments(ids=IDS, *, batch=BATCH, length=LENGTH):
    return Segments(ids, batch_size=batch, tgt_len=length)


def make_lm(optimizer=None, *, config=CONFIG, span=SPAN, batch=BATCH, model=CausalLM, **compiling):
    """Returns a compiled model with fixed weights, the same on every backend."""
    lm = model(config, batch_size=batch, span=span, seed=1)
    rng = np.random.default_rng(7)
    for weight in lm.backbone.weights:
        weight.assign(rng.normal(scale=0.3, size=weight.shape))
    lm.compile(optimizer or keras.optimizers.SGD(0.1), **compiling)
    return lm


def read_memory(lm):
    """Returns the memory of training."""
    return [read(x) for x in lm.weights if x.name.startswith("memory")]


def read_states(lm):
    """Returns the weights, the variables of the optimizer and the memory of training."""
    return [*map(read, [*lm.backbone.weights, *lm.optimizer.variables]), *read_memory(lm)]


def read(variable):
    return keras.ops.convert_to_numpy(variable)
