"""Trains and reads with every encoding on the JAX backend: `jax_encodings.py WEIGHTS RESULTS`.

WEIGHTS is an .npz of the variables by encoding and path. RESULTS becomes an .npz of the losses of
two segments and the gradients of their sum, by encoding.
"""

import sys

import keras
import numpy as np
from small_encodings import LENGTH, ON_JAX, TEXT, choose_span, make_model


def main(weights_path, results_path):
    assert keras.backend.backend() == "jax"
    results = {}
    with np.load(weights_path) as weights:
        for name in ON_JAX:
            model = make_model(name)
            for variable in model.trainable_variables:
                variable.assign(weights[f"{name}/{variable.path}"])
            results |= {f"{name}/{key}": value for key, value in differentiate(model, name).items()}
    np.savez(results_path, **results)


def differentiate(model, name):
    import jax

    span = choose_span(name)

    def compute_loss(weights):
        scope = zip(model.trainable_variables, weights, strict=True)
        with keras.StatelessScope(state_mapping=scope):
            memory, nats = model.initial_memory(1, span.mem_len), []
            for start in range(0, 2 * LENGTH, LENGTH):
                ids, targets = (TEXT[:, start + i : start + i + LENGTH] for i in (0, 1))
                hidden, memory = model(ids, memory, span=span, training=True)
                nats.append(model.nll(hidden, targets))
        nats = keras.ops.concatenate(nats, axis=1)
        return keras.ops.sum(nats), nats

    weights = [variable.value for variable in model.trainable_variables]
    (_, nats), gradients = jax.jit(jax.value_and_grad(compute_loss, has_aux=True))(weights)
    pairs = zip(model.trainable_variables, gradients, strict=True)
    found = {f"gradient/{variable.path}": np.asarray(gradient) for variable, gradient in pairs}
    return {"nats": np.asarray(nats), **found}


if __name__ == "__main__":
    main(*sys.argv[1:])
