"""A training step of a recurrent model on the JAX backend: `jax_lstm.py WEIGHTS RESULTS`.

WEIGHTS is an .npz of the variables by their path, which begins with lstm or qrnn. RESULTS becomes
an .npz of the loss, the memory and the gradients of a segment in which documents begin, with remat
and without.
"""

import dataclasses
import sys

import keras
import numpy as np
from small_lstm import CONFIG, STARTS, make_ids, make_model

DROPPING = dataclasses.replace(CONFIG, dropout=0.3)
IDS = make_ids()


def main(weights_path, results_path):
    with np.load(weights_path) as weights:
        kind = weights.files[0].partition("/")[0]
        results = {
            f"{name}/{key}": value
            for name, remat in (("plain", False), ("remat", True))
            for key, value in run_step(kind, weights, remat).items()
        }
    np.savez(results_path, **results)


def run_step(kind, weights, remat):
    """Returns loss, memory and gradients, after a segment without gradients fills the memory."""
    import jax

    assert keras.backend.backend() == "jax"
    config = dataclasses.replace(DROPPING, model_type=kind)
    model = make_model(config, remat=remat)
    for variable in model.trainable_variables:
        variable.assign(weights[variable.path])
    memory = fill_memory(model)
    model.set_dropout_seed(3)

    def compute_loss(weights, memory):
        state = [variable.value for variable in model.non_trainable_variables]
        (hidden, memory), _ = model.stateless_call(
            weights, state, IDS, memory, training=True, document_starts=STARTS
        )
        scope = zip(model.trainable_variables, weights, strict=True)
        with keras.StatelessScope(state_mapping=scope):
            nll = model.nll(hidden, IDS[:, ::-1])
        return keras.ops.mean(nll), memory

    step = jax.jit(jax.value_and_grad(compute_loss, has_aux=True))
    values = [variable.value for variable in model.trainable_variables]
    (loss, memory), gradients = step(values, memory)
    paths = [f"gradient/{variable.path}" for variable in model.trainable_variables]
    return {
        "loss": loss,
        **{f"memory/{k}": states for k, states in enumerate(jax.tree.leaves(memory))},
        **dict(zip(paths, gradients, strict=True)),
    }


def fill_memory(model):
    """Returns the memory after a segment."""
    return model(IDS[::-1], model.initial_memory(len(IDS)))[1]


if __name__ == "__main__":
    main(*sys.argv[1:])
