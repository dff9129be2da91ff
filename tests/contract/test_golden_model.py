"""The model beside the 2019 code."""

import numpy as np
import pytest
import tensorflow as tf
from golden_cases import EVALUATIONS, NAMES, load_case, parse_evaluation
from small_model import COMPILED, GRADIENT_TOLERANCE, LOSS_TOLERANCE

from txl_tf.release import list_entries, load_model


@COMPILED
@pytest.mark.parametrize("name", NAMES)
def test_segments_are_those_of_the_2019_code(name, jit):
    """Losses and memory of every segment, gradients of the last."""
    case = load_case(name)
    model = load_model(case.checkpoint, case.config)
    entries = list(list_entries(model))

    @tf.function(jit_compile=jit)
    def step(ids, targets, memory):
        with tf.GradientTape() as tape:
            hidden, memory = model(ids, memory, span=case.span)
            nll = model.nll(hidden, targets)
            loss = tf.reduce_mean(nll)
        gradients = tape.gradient(loss, [entry.target.value for entry in entries])
        return nll, memory, [tf.convert_to_tensor(gradient) for gradient in gradients]

    segments = case.cut(case.tgt_len)
    memory, computed = model.initial_memory(len(segments[0][0]), case.span.mem_len), {}
    for index, (ids, targets) in enumerate(segments):
        nll, memory, gradients = step(tf.constant(ids), tf.constant(targets), memory)
        computed[f"nll_{index}"] = nll
        computed |= {f"mem_{index}_{layer}": states for layer, states in enumerate(memory)}
    names = [f"grad/transformer/{entry.source}" for entry in entries]
    computed |= dict(zip(names, gradients, strict=True))
    evaluations = {key for key in case.golden if key.startswith("eval/")}
    assert computed.keys() == case.golden.keys() - evaluations - {"tokens"}
    for key, value in computed.items():
        tolerance = GRADIENT_TOLERANCE if key.startswith("grad/") else LOSS_TOLERANCE
        np.testing.assert_allclose(value, case.golden[key], rtol=0, atol=tolerance, err_msg=key)


@COMPILED
@pytest.mark.parametrize(("name", "key"), EVALUATIONS)
def test_evaluations_are_those_of_the_2019_code(name, key, jit):
    case, (tgt_len, span) = load_case(name), parse_evaluation(key)
    model = load_model(case.checkpoint, case.config)

    @tf.function(jit_compile=jit)
    def score(ids, targets, memory):
        hidden, memory = model(ids, memory, span=span)
        return model.nll(hidden, targets), memory

    memory, losses = model.initial_memory(len(case.golden["tokens"]), span.mem_len), []
    for ids, targets in case.cut(tgt_len):
        nll, memory = score(tf.constant(ids), tf.constant(targets), memory)
        losses.append(nll)
    nll = np.concatenate(losses, axis=1)
    np.testing.assert_allclose(nll, case.golden[key], rtol=0, atol=LOSS_TOLERANCE)


def test_every_golden_evaluation_is_compared():
    keys = {(name, key) for name in NAMES for key in load_case(name).golden if "eval/" in key}
    assert keys == set(EVALUATIONS)
