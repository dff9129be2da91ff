"""Takes gradients with and without `remat` on the JAX backend: `jax_remat.py WEIGHTS RESULTS`.

WEIGHTS is an .npz of the variables by their path. RESULTS becomes an .npz of the loss, the new
memory, the state of the dropout and every gradient, after "plain/" and "remat/", and of how often
each of the two tells the compiler not to merge what is computed twice; and, after "locked/", of the
same with locked dropout and dropout of words.
"""

import dataclasses
import sys

import keras
import numpy as np
from jax_documents import CONFIG as PLAIN

from txl_tf.config import AttentionSpan
from txl_tf.models.transformer_xl import TransformerXL

CONFIG = dataclasses.replace(PLAIN, dropout=0.25, dropatt=0.5)
LOCKED = dataclasses.replace(
    CONFIG,
    locked_dropout=True,
    word_dropout=0.2,
    input_dropout=0.4,
    qkv_dropout=0.3,
    output_dropout=0.5,
)
SPAN = AttentionSpan(7)
IDS = np.arange(10, dtype="int32").reshape(2, 5) * 7 % 23
STARTS = np.isin(np.arange(10), [3, 7]).reshape(2, 5)


def main(weights_path, results_path):
    assert keras.backend.backend() == "jax"
    results = {}
    cases = {"plain": (CONFIG, False), "remat": (CONFIG, True), "locked": (LOCKED, False)}
    for name, (config, remat) in cases.items():
        model = TransformerXL(config, seed=3, remat=remat)
        with np.load(weights_path) as weights:
            for variable in model.trainable_variables:
                variable.assign(weights[variable.path])
        results |= {f"{name}/{key}": value for key, value in take_gradients(model).items()}
    np.savez(results_path, **results)


def take_gradients(model):
    import jax

    def compute_loss(weights, state, ids, memory, starts):
        (hidden, memory), state = model.stateless_call(
            weights, state, ids, memory, span=SPAN, training=True, document_starts=starts
        )
        scope = zip(model.trainable_variables, weights, strict=True)
        with keras.StatelessScope(state_mapping=scope):
            nll = model.nll(hidden, ids[:, ::-1])
        return keras.ops.mean(nll), (memory, state)

    weights = [variable.value for variable in model.trainable_variables]
    state = [variable.value for variable in model.non_trainable_variables]
    memory = model.initial_memory(2, SPAN.mem_len, mask_empty=True)
    inputs = (weights, state, IDS, memory, STARTS)
    lowered = jax.jit(jax.value_and_grad(compute_loss, has_aux=True)).lower(*inputs)
    (loss, (memory, state)), gradients = lowered.compile()(*inputs)
    results = {"loss": loss, "barriers": lowered.as_text().count("optimization_barrier")}
    results |= {f"memory_{layer}": states for layer, states in enumerate(memory)}
    for variable, value in zip(model.non_trainable_variables, state, strict=True):
        results[f"state/{variable.path}"] = value
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        results[f"gradient/{variable.path}"] = gradient
    return results


if __name__ == "__main__":
    main(*sys.argv[1:])
