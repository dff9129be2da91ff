"""What a TPU asks for: the whole step under XLA, static shapes, nothing on the host."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf
from small_runs import BATCH, DROPPING, MEM_LEN, RESETTING, TGT_LEN
from tables import slow_after

import txl_tf

LAMB = dataclasses.replace(RESETTING, optimizer="lamb", weight_decay=0.1, ema=0.9, remat=True)
MODEL = dataclasses.replace(DROPPING, n_layer=1)
ADAPTIVE = dataclasses.replace(MODEL, cutoffs=(13,), div_val=2, untie_r=True)


def compile_step(model_config, dtype, config):
    """Returns the HLO of forward and backward pass, clipping, update and memory of one replica."""
    model = txl_tf.TransformerXL(model_config, seed=3, remat=config.remat, dtype=dtype)
    optimizer = txl_tf.training.make_optimizer(config)
    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=True, autograph=False)
    def step(ids, targets, memory, document_starts):
        train_step = txl_tf.training.TrainStep(model, optimizer)
        result, new_memory = train_step(ids, targets, memory, document_starts=document_starts)
        return tuple(result), new_memory

    ids = tf.zeros((BATCH, TGT_LEN), tf.int32)
    memory = model.initial_memory(BATCH, MEM_LEN, mask_empty=True)
    starts = tf.zeros((BATCH, TGT_LEN), tf.bool)
    return step.experimental_get_compiler_ir(ids, ids, memory, starts)(stage="optimized_hlo")


CASES = [
    pytest.param((MODEL, "float32", RESETTING), id="float32"),
    pytest.param((ADAPTIVE, "mixed_bfloat16", LAMB), id="adaptive_bfloat16_lamb_remat"),
]


@pytest.fixture(scope="module", params=slow_after(1, CASES))
def hlo(request):
    return compile_step(*request.param)


def test_the_step_has_static_shapes_only(hlo):
    assert "ENTRY" in hlo
    assert not re.findall(r"\[[^\]]*<=\d+[^\]]*\]", hlo)
    assert "set-dimension-size" not in hlo
    assert "get-dimension-size" not in hlo


def test_the_step_asks_nothing_of_the_host(hlo):
    assert not re.findall(r"\b(infeed|outfeed|send|recv|host-transfer)\(", hlo)
    assert not re.findall(r"custom_call_target=\"[^\"]*(?:callback|host)[^\"]*\"", hlo)


def test_dropout_masks_are_computed_where_they_are_used(hlo):
    """No mask, nor the random bits behind one, is stored: all are inside of fusions."""
    stored = re.findall(
        r"^ *%\S+ = \(?[^=]*\b(?:pred|u32)\[(\d+(?:,\d+)+)\]", find_entry(hlo), re.M
    )
    heads, keys = MODEL.n_head, MEM_LEN + TGT_LEN
    masks = [
        (BATCH, heads, TGT_LEN, keys),
        (BATCH, TGT_LEN, MODEL.d_model),
        (BATCH, TGT_LEN, MODEL.d_inner),
        (keys, MODEL.d_model),
    ]
    sizes = {int(np.prod(mask)) for mask in masks}
    assert not [shape for shape in stored if np.prod([*map(int, shape.split(","))]) in sizes]


@pytest.mark.slow
def test_a_compiled_loop_makes_the_steps_of_separate_calls():
    """In the loop the ids are no constants: what depends on them must have fixed shapes."""
    segments = np.random.default_rng(7).integers(0, MODEL.n_token, (3, BATCH, TGT_LEN + 1))
    segments = tf.constant(segments, tf.int32)

    def make_step():
        model = txl_tf.TransformerXL(ADAPTIVE, seed=3)
        optimizer = txl_tf.training.make_optimizer(RESETTING)
        optimizer.build(model.trainable_variables)
        train_step = txl_tf.training.TrainStep(model, optimizer)

        def step(segment, memory):
            result, memory = train_step(segment[:, :-1], segment[:, 1:], memory)
            return result.nats, memory

        return step, model.initial_memory(BATCH, MEM_LEN)

    step, memory = make_step()

    @tf.function(jit_compile=True, autograph=False)
    def run(segments, memory):
        def body(index, nats, memory):
            value, memory = step(segments[index], memory)
            return index + 1, tf.tensor_scatter_nd_update(nats, [[index]], [value]), memory

        state = (tf.constant(0), tf.zeros(3), memory)
        return tf.while_loop(lambda index, *_: index < 3, body, state)[1]

    looped = run(segments, memory)
    step, memory = make_step()
    alone, expected = tf.function(step, autograph=False), []
    for segment in segments:
        nats, memory = alone(segment, memory)
        expected.append(nats)
    np.testing.assert_allclose(looped, expected, rtol=1e-5)  # float32, fused otherwise


@pytest.mark.slow
def test_parts_of_a_batch_are_computed_one_after_the_other():
    """They depend on nothing but the weights: XLA would keep the activations of all at once."""
    from tensorflow.compiler.xla.service import hlo_pb2

    config = txl_tf.presets.get("demo").training
    model = txl_tf.TransformerXL(txl_tf.presets.model("demo"), seed=3)

    def count_bytes(n_parts):
        """Returns the memory of a step besides its arguments and results."""
        parted = dataclasses.replace(config, accumulate_steps=n_parts)
        optimizer = txl_tf.training.make_optimizer(parted)
        optimizer.build(model.trainable_variables)
        train_step = txl_tf.training.TrainStep(model, optimizer)

        @tf.function(jit_compile=True, autograph=False)
        def step(ids, memory):
            return train_step(ids, ids, memory)[1]

        ids, memory = tf.zeros((64, 64), tf.int32), model.initial_memory(64, config.mem_len)
        get_ir = step.experimental_get_compiler_ir(ids, memory)
        program = hlo_pb2.HloProto.FromString(get_ir(stage="optimized_hlo_proto_serialized"))
        return sum(
            buffer.size
            for buffer in program.buffer_assignment.buffer_allocations
            if not buffer.is_entry_computation_parameter and not buffer.maybe_live_out
        )

    assert count_bytes(4) < 0.6 * count_bytes(1)


def find_entry(hlo):
    """Returns the computation that a program begins with, without those that it calls."""
    return hlo[hlo.index("ENTRY") :].partition("\n}")[0]


def test_ids_and_targets_are_parameters_32_bits_wide(hlo):
    """What a slice's start, or a shape, depended on would be a constant: compiled at every step."""
    entry = hlo[: hlo.index("ENTRY")].splitlines()[0]
    arguments = entry.partition("->")[0]
    assert arguments.count(f"s32[{BATCH},{TGT_LEN}]") == 2
    assert f"pred[{BATCH},{TGT_LEN}]" in arguments
    assert f"s64[{BATCH},{TGT_LEN}]" not in entry
