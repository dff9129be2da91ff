"""Reads documents on the JAX backend, compiled: `jax_documents.py WEIGHTS RESULTS`.

WEIGHTS is an .npz of the variables by their path. RESULTS becomes an .npz of hidden states and
memory of each segment.
"""

import sys

import keras
import numpy as np

from txl_tf.config import AttentionSpan, ModelConfig
from txl_tf.models.transformer_xl import TransformerXL

CONFIG = ModelConfig(
    n_token=23,
    n_layer=3,
    d_model=10,
    d_embed=10,
    n_head=3,
    d_head=7,
    d_inner=17,
    init="uniform",
    init_range=0.5,
)
SPAN = AttentionSpan(7, same_length=True)
TEXT = np.arange(20, dtype="int32").reshape(2, 10) * 7 % 23
STARTS = np.isin(np.arange(20), [3, 7, 10, 16, 17]).reshape(2, 10)


def main(weights_path, results_path):
    import jax

    model = TransformerXL(CONFIG)
    with np.load(weights_path) as weights:
        for variable in model.trainable_variables:
            variable.assign(weights[variable.path])
    call = jax.jit(model, static_argnames="span")
    assert keras.backend.backend() == "jax"
    np.savez(results_path, **read_segments(model, call))


def read_segments(model, call):
    """Returns hidden states and memory of two segments, by name; `call` calls the model."""
    memory, results = model.initial_memory(2, SPAN.mem_len, mask_empty=True), {}
    for index, (ids, starts) in enumerate(
        zip(np.split(TEXT, 2, axis=1), np.split(STARTS, 2, axis=1), strict=True)
    ):
        hidden, memory = call(ids, memory, span=SPAN, document_starts=starts)
        results[f"hidden_{index}"] = np.asarray(hidden)
        results |= {
            f"memory_{index}_{layer}": np.asarray(states) for layer, states in enumerate(memory)
        }
    return results


if __name__ == "__main__":
    main(*sys.argv[1:])
