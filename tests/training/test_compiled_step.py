"""What a TPU asks for: the whole step under XLA, static shapes, nothing on the host."""

import dataclasses
import re

import pytest
import tensorflow as tf
from small_runs import BATCH, DROPPING, MEM_LEN, RESETTING, TGT_LEN

import txl_tf

LAMB = dataclasses.replace(RESETTING, optimizer="lamb", weight_decay=0.1, ema=0.9)
ADAPTIVE = dataclasses.replace(DROPPING, cutoffs=(7, 13), div_val=2, untie_r=True)


def compile_step(model_config, *, dtype, config):
    """Returns the HLO of forward and backward pass, clipping, update and memory of one replica."""
    model = txl_tf.TransformerXL(model_config, seed=3, remat=config.remat, dtype=dtype)
    optimizer = txl_tf.training.make_optimizer(config)
    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=True, autograph=False)
    def step(ids, targets, memory, document_starts):
        result, new_memory = txl_tf.training.train_step(
            model,
            optimizer,
            ids,
            targets,
            memory,
            span=config.span,
            document_starts=document_starts,
        )
        return tuple(result), new_memory

    ids = tf.zeros((BATCH, TGT_LEN), tf.int32)
    memory = model.initial_memory(BATCH, MEM_LEN)
    starts = tf.zeros((BATCH, TGT_LEN), tf.bool)
    return step.experimental_get_compiler_ir(ids, ids, memory, starts)(stage="optimized_hlo")


@pytest.fixture(
    scope="module",
    params=[
        (DROPPING, "float32", RESETTING),
        (ADAPTIVE, "float32", RESETTING),
        (ADAPTIVE, "mixed_bfloat16", RESETTING),
        (DROPPING, "float32", LAMB),
        (DROPPING, "float32", dataclasses.replace(RESETTING, remat=True)),
    ],
    ids=["one_bin", "adaptive", "bfloat16", "lamb", "remat"],
)
def hlo(request):
    model_config, dtype, config = request.param
    return compile_step(model_config, dtype=dtype, config=config)


def test_the_step_has_static_shapes_only(hlo):
    assert "ENTRY" in hlo
    assert not re.findall(r"\[[^\]]*<=\d+[^\]]*\]", hlo)
    assert "set-dimension-size" not in hlo
    assert "get-dimension-size" not in hlo


def test_the_step_asks_nothing_of_the_host(hlo):
    assert not re.findall(r"\b(infeed|outfeed|send|recv|host-transfer)\(", hlo)
    assert not re.findall(r"custom_call_target=\"[^\"]*(?:callback|host)[^\"]*\"", hlo)


def test_ids_and_targets_are_32_bits_wide(hlo):
    entry = hlo[hlo.index("ENTRY") :].splitlines()[0] + hlo[: hlo.index("ENTRY")].splitlines()[0]
    assert f"s32[{BATCH},{TGT_LEN}]" in entry
    assert f"s64[{BATCH},{TGT_LEN}]" not in entry
