"""Runs the models of the golden files on the JAX backend: `jax_golden.py WEIGHTS RESULTS`.

WEIGHTS is an .npz of the variables by the name of the model and their path. RESULTS becomes an .npz
of the losses, the memories, the gradients of the last segment by the variables' path, and the
evaluations, under the name of the model and the keys of its golden file; and `modules`, what was
imported.
"""

import dataclasses
import sys

import keras
import numpy as np
from golden_cases import EVALUATIONS, NAMES, load_case, parse_evaluation

from txl_tf.models.transformer_xl import TransformerXL


def main(weights_path, results_path):
    results = {}
    with np.load(weights_path) as weights:
        for name in NAMES:
            found = run_case(name, weights)
            results |= {f"{name}/{key}": value for key, value in found.items()}
    packages = sorted({module.split(".")[0] for module in sys.modules})
    np.savez(results_path, backend=keras.backend.backend(), modules=packages, **results)


def run_case(name, weights):
    """Returns what the model of a golden file computes, under the keys of that file."""
    case = load_case(name)
    # Uniform weights compile faster than normal ones, and are replaced at once.
    model = TransformerXL(dataclasses.replace(case.config, init="uniform"))
    for variable in model.trainable_variables:
        variable.assign(weights[f"{name}/{variable.path}"])
    results = run_segments(model, case)
    for key in [key for owner, key in EVALUATIONS if owner == name]:
        results[key] = evaluate(model, case, *parse_evaluation(key))
    return results


def run_segments(model, case):
    """Returns losses, memories and last gradients, with `stateless_call` and weights traced."""
    import jax

    def compute_loss(weights, ids, targets, memory):
        state = [variable.value for variable in model.non_trainable_variables]
        (hidden, memory), _ = model.stateless_call(weights, state, ids, memory, span=case.span)
        scope = zip(model.trainable_variables, weights, strict=True)
        with keras.StatelessScope(state_mapping=scope):
            nll = model.nll(hidden, targets)
        return keras.ops.mean(nll), (nll, memory)

    step = jax.jit(jax.value_and_grad(compute_loss, has_aux=True))
    weights = [variable.value for variable in model.trainable_variables]
    segments = case.cut(case.tgt_len)
    memory = model.initial_memory(len(segments[0][0]), case.span.mem_len)
    results = {}
    for index, (ids, targets) in enumerate(segments):
        (_, (nll, memory)), gradients = step(weights, ids, targets, memory)
        results[f"nll_{index}"] = nll
        results |= {f"mem_{index}_{layer}": states for layer, states in enumerate(memory)}
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        results[f"grad/{variable.path}"] = gradient
    return results


def evaluate(model, case, tgt_len, span):
    import jax

    @jax.jit
    def score(ids, targets, memory):
        hidden, memory = model(ids, memory, span=span)
        return model.nll(hidden, targets), memory

    segments, losses = case.cut(tgt_len), []
    memory = model.initial_memory(len(segments[0][0]), span.mem_len)
    for ids, targets in segments:
        nll, memory = score(ids, targets, memory)
        losses.append(nll)
    return np.concatenate(losses, axis=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
