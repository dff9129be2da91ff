"""A tiny model of each position encoding, and a text, that tests and a JAX program share."""

import numpy as np

from txl_tf.config import AttentionSpan, ModelConfig
from txl_tf.models.transformer_xl import TransformerXL

# The tables have fewer rows than there are distances, so that the last row is shared.
CASES = {
    "relative": {},
    "relative_untied": {"encoding": "relative", "untie_r": True},
    "shaw": {"n_positions": 6},
    "shaw_biased": {"n_positions": 6},
    "sinusoid": {},
    "learned": {"n_positions": 5},
}
ON_JAX = ("shaw", "shaw_biased", "sinusoid", "learned")  # golden numbers compare the others
LENGTH = 5
MEMORY = AttentionSpan(7)
TEXT = np.random.default_rng(3).integers(19, size=(1, 2 * LENGTH + 1), dtype="int32")


def make_config(name, **changes):
    fields = {
        "n_token": 19,
        "n_layer": 2,
        "d_model": 8,
        "d_embed": 8,
        "n_head": 3,
        "d_head": 5,
        "d_inner": 11,
        "dropout": 0.0,
        "dropatt": 0.0,
        "encoding": name,
    }
    return ModelConfig(**fields | CASES[name] | changes)


def make_model(name, *, remat=False, **changes):
    """Returns a model whose weights are all random and large enough to matter."""
    model = TransformerXL(make_config(name, **changes), seed=1, remat=remat)
    rng = np.random.default_rng(7)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(scale=0.4, size=variable.shape))
    return model


def choose_span(name, span=MEMORY):
    """Returns the span, or one without memory if the encoding cannot have any."""
    return span if make_config(name).can_have_memory else AttentionSpan(0)
