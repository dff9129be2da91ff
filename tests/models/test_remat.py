"""With `remat` a layer is computed twice, and nothing else differs."""

import numpy as np
import pytest
import tensorflow as tf
from small_model import BATCH, SAME, make_ids, make_model
from tables import slow_after

from txl_tf.config import AttentionSpan
from txl_tf.layers import RelativeAttention
from txl_tf.training.step import compute_gradients

SPAN = AttentionSpan(7)
DROPPING = {"n_layer": 2, "dropout": 0.25, "dropatt": 0.5}
LOCKED = {
    "locked_dropout": True,
    "word_dropout": 0.3,
    "input_dropout": 0.4,
    "qkv_dropout": 0.2,
    "output_dropout": 0.5,
}
# Two segments, and where documents begin in them.
TEXT = np.split(make_ids(10), 2, axis=1)
STARTS = np.split(np.isin(np.arange(20).reshape(2, 10), [2, 6, 15, 18]), 2, axis=1)
WAYS = {
    "eager": compute_gradients,
    "traced": tf.function(compute_gradients, autograph=False),
    "compiled": tf.function(compute_gradients, autograph=False, jit_compile=True),
}
# Of the largest entry: a compiler sums in another order, and bfloat16 has 3 digits. Other masks
# change every gradient by about its size.
TOLERANCES = {"float32": 1e-4, "mixed_bfloat16": 0.02}
CASES = {
    "locked": (LOCKED, "float32", True),
    "documents": ({"untie_r": True}, "float32", True),
    "bfloat16": ({}, "mixed_bfloat16", False),
    "no_dropatt": ({"dropatt": 0.0}, "float32", False),
    "dropatt_alone": ({"dropout": 0.0}, "float32", True),
}


def read_text(model, compute, *, has_documents=False):
    """Returns losses, gradients and memories of two segments by name; sets no seed between them."""
    memory, results = model.initial_memory(BATCH, SPAN.mem_len, has_documents), {}
    for index, (ids, starts) in enumerate(zip(TEXT, STARTS, strict=True)):
        starts = tf.constant(starts) if has_documents else None
        ids = tf.constant(ids)
        nats, gradients, memory = compute(
            model, ids, ids[:, ::-1], memory, span=SPAN, document_starts=starts
        )
        results[f"nats_{index}"] = nats
        results |= {f"memory_{index}_{layer}": states for layer, states in enumerate(memory)}
        for weight, gradient in zip(model.trainable_variables, gradients, strict=True):
            results[f"gradient_{index}/{weight.path}"] = gradient
    return {name: tf.cast(value, tf.float32).numpy() for name, value in results.items()}


@pytest.mark.parametrize(
    ("case", "way"),
    slow_after(
        2,
        [(case, "eager") for case in CASES] + [("locked", "traced"), ("documents", "compiled")],
    ),
)
def test_losses_memories_and_every_gradient_are_those_without(case, way):
    changes, dtype, has_documents = CASES[case]
    expected, found = (
        read_text(
            make_model(dtype=dtype, remat=remat, **DROPPING | changes),
            WAYS[each_way],
            has_documents=has_documents,
        )
        for remat, each_way in ((False, "eager"), (True, way))
    )
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = np.abs(value).max()
        assert scale > 0, name
        atol = TOLERANCES[dtype] * scale
        np.testing.assert_allclose(found[name], value, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize(("remat", "times"), [(False, 1), (True, 2)])
def test_layers_are_computed_again_in_the_backward_pass(remat, times, monkeypatch):
    calls, project = [], RelativeAttention.project

    def count(attention, *args, **kwargs):
        calls.append(attention.path)
        return project(attention, *args, **kwargs)

    monkeypatch.setattr(RelativeAttention, "project", count)
    model = make_model(remat=remat, **DROPPING)
    compute_gradients(
        model, make_ids(), make_ids(), model.initial_memory(BATCH, SPAN.mem_len), span=SPAN
    )
    assert len(set(calls)) == 2
    assert {path: calls.count(path) for path in calls} == dict.fromkeys(calls, times)


def test_an_evaluation_draws_no_masks():
    model, plain = (make_model(remat=remat, **DROPPING) for remat in (True, False))
    before = np.asarray(model.seed_generator.state)
    hidden, expected = (
        each(make_ids(), each.initial_memory(BATCH, 7))[0] for each in (model, plain)
    )
    np.testing.assert_allclose(hidden, expected, **SAME)
    np.testing.assert_array_equal(model.seed_generator.state, before)


def test_a_copy_of_a_model_computes_its_layers_again_too():
    model = make_model(remat=True)
    assert type(model).from_config(model.get_config()).remat
