"""The fast operations of a layer beside their definitions."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from tables import slow_after

from txl_tf.layers import DecoderLayer, count_before, make_attention_mask
from txl_tf.layers.attention import attend
from txl_tf.layers.fused.for_xla import make_late_zero
from txl_tf.layers.fused.fusion import Engine, use_engine
from txl_tf.models.compilation import CHAINS

BATCH, QUERIES, MEMORY, HEADS, HEAD_SIZE, WIDTH = 2, 3, 5, 7, 3, 13
KEYS = MEMORY + QUERIES
MASK = make_attention_mask(QUERIES, MEMORY)
STARTS = np.array([[False, True, False], [False, False, True]])
N_BEFORE = count_before(tf.constant([MEMORY, 2]), QUERIES, tf.constant(STARTS))
DOCUMENTS = make_attention_mask(QUERIES, MEMORY, n_before=N_BEFORE)


def make_inputs(heads=HEADS):
    """Returns hidden, memory, positions, u and v."""
    rng = np.random.default_rng(11)
    shapes = [(BATCH, QUERIES, WIDTH), (BATCH, MEMORY, WIDTH), (KEYS, WIDTH)]
    shapes += [(heads, HEAD_SIZE)] * 2
    return [tf.constant(rng.normal(size=shape), "float32") for shape in shapes]


def make_layer(*, dropout, dropatt, heads=HEADS, dtype="float32", **others):
    layer = DecoderLayer(
        n_head=heads,
        d_head=HEAD_SIZE,
        d_inner=17,
        dropout=dropout,
        dropatt=dropatt,
        **others,
        seed=7,
        dtype=dtype if dtype == "float32" else f"mixed_{dtype}",
    )
    layer.build((BATCH, QUERIES, WIDTH))
    rng = np.random.default_rng(5)
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(scale=0.3, size=variable.shape))
    return layer


def differentiate(run, *, jit="none", **options):
    """Returns the output of a layer, and the gradients of inputs and weights of a weighted sum.

    Args:
        run: Takes the layer and its inputs; no gradient flows into the memory.
        jit: What XLA compiles.
        **options: Of `make_layer`, and `documents`.
    """
    documents = options.pop("documents", False)
    layer, inputs = make_layer(**options), make_inputs(options.get("heads", HEADS))
    factors = np.random.default_rng(3).normal(size=(BATCH, QUERIES, WIDTH))
    mask = DOCUMENTS if documents else MASK

    def compute(*inputs):
        watched = [inputs[0], *inputs[2:], *(weight.value for weight in layer.trainable_variables)]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            with use_engine(CHAINS) if jit == "chains" else contextlib.nullcontext():
                cast = [tf.cast(tensor, layer.compute_dtype) for tensor in inputs]
                output = tf.cast(run(layer, *cast, mask), tf.float32)
            total = tf.reduce_sum(output * factors)
        return output, *tape.gradient(total, watched)

    if jit != "none":
        compute = tf.function(compute, jit_compile=jit == "whole", autograph=False)
    return [np.asarray(tensor) for tensor in compute(*inputs)]


def run_fast(layer, *tensors):
    return layer(*tensors, training=True)


def run_plainly(layer, hidden, *tensors):
    def drop(states, dropout):
        return dropout(states, training=True)

    network = layer.feed_forward
    with use_engine(Engine(attend=attend)):
        change = layer.attention(hidden, *tensors, training=True)
    hidden = layer.attention_norm(hidden + drop(change, layer.dropout))
    inner = drop(tf.nn.relu(network.inner(hidden)), network.dropout)
    return layer.feed_forward_norm(hidden + drop(network.outer(inner), layer.dropout))


LOCKED = {"dropout": 0.3, "dropatt": 0.4, "is_locked": True, "qkv_dropout": 0.2}
LOCKED |= {"documents": True}
DROPPING = {"dropout": 0.3, "dropatt": 0.4}
ONE_HEAD = DROPPING | {"heads": 1}
OTHERS = [
    {"dropout": 0.0, "dropatt": 0.4, "documents": True},
    {"dropout": 0.3, "dropatt": 0.0, "documents": True},
    {"dropout": 0.0, "dropatt": 0.0, "qkv_dropout": 0.2},
    {"dropout": 0.0, "dropatt": 0.0},
]


@pytest.mark.parametrize(
    ("case", "jit"),
    slow_after(
        4,
        [
            (LOCKED, "chains"),
            *((case, "none") for case in (LOCKED, DROPPING, ONE_HEAD, *OTHERS)),
            *((DROPPING, "chains"), (ONE_HEAD, "whole"), (LOCKED, "whole")),
        ],
    ),
    ids=str,
)
def test_a_layer_is_its_definition(case, jit):
    found = differentiate(run_fast, jit=jit, **case)
    expected = differentiate(run_plainly, **case)
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() <= 3e-6 * np.abs(other).max()  # float32


@pytest.mark.parametrize(
    ("dtype", "case", "jit"),
    slow_after(
        1,
        [
            ("bfloat16", LOCKED, "none"),
            ("float16", DROPPING, "chains"),
            ("bfloat16", LOCKED, "whole"),
        ],
    ),
    ids=str,
)
def test_low_precision_loses_no_more_than_rounding(dtype, case, jit):
    found = differentiate(run_fast, jit=jit, dtype=dtype, **case)
    expected = differentiate(run_plainly, **case)
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() < 0.05 * np.abs(other).max()  # bfloat16 has 8 bits


def test_chains_alone_are_compiled_and_once_for_all_layers():
    """The products stay outside, and two layers call the same functions."""
    layers = [make_layer(dropout=0.3, dropatt=0.4) for _ in range(2)]

    @tf.function(autograph=False)
    def compute(hidden, *rest):
        with use_engine(CHAINS):
            for layer in layers:
                hidden = layer(hidden, *rest, MASK, training=True)
        return hidden

    graph = compute.get_concrete_function(*make_inputs()).graph.as_graph_def()
    kinds = [node.op for node in graph.node]
    calls = [node.attr["f"].func.name for node in graph.node if "PartitionedCall" in node.op]
    bodies = [function for function in graph.library.function if function.signature.name in calls]
    assert {node.op for body in bodies for node in body.node_def}.isdisjoint(
        {"MatMul", "BatchMatMulV2"}
    )
    assert all(body.attr["_XlaMustCompile"].b for body in bodies)
    assert sum(kind in ("MatMul", "BatchMatMulV2") for kind in kinds) == 18  # 9 a layer
    assert len(calls) == 2 * len(set(calls)) > 0


def test_a_late_zero_is_zero_or_not_a_number():
    zeros = [float(make_late_zero(tf.constant([x, 1.0]))) for x in (-3.0, 0.0, 2.0, np.inf)]
    assert zeros == [0.0] * 4
    assert np.isnan(float(make_late_zero(tf.constant([np.nan, 1.0]))))
