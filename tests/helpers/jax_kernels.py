"""Runs attention by the kernels for TPUs, interpreted, and by plain operations, on JAX.

`jax_kernels.py WEIGHTS RESULTS`: WEIGHTS is not read. RESULTS becomes an .npz of attended values
and gradients after "CASE/kernel/" and "CASE/plain/".
"""

import functools
import sys

import jax
import keras
import numpy as np
from keras import ops

from txl_tf.layers import count_before, make_attention_mask
from txl_tf.layers.fused import fused_attention, tpu_attention, tpu_kernels

N_ROWS, N_HEAD, D_HEAD = 2, 3, 5
STARTS = np.isin(np.arange(2 * 37), [3, 7, 40, 60]).reshape(2, 37)
# name: T, M, span, n_read of the rows with documents, dropout, most queries of a block
CASES = {
    "plain": (7, 11, {}, None, 0.0, 512),
    "blocks": (37, 20, {}, None, 0.0, 16),
    "no_memory": (37, 0, {}, None, 0.3, 16),
    "same_length": (37, 50, {"same_length": True}, None, 0.25, 16),
    "counts_self": (20, 31, {"same_length": True, "counts_self": True}, None, 0.0, 16),
    "documents": (37, 91, {}, [3, 91], 0.5, 32),
    "long_memory": (37, 200, {}, None, 0.1, 16),
}


def main(_, results_path):
    assert keras.backend.backend() == "jax"
    results = {}
    for name, case in CASES.items():
        for kind in ("kernel", "plain"):
            found = compute(kind, *case)
            results |= {f"{name}/{kind}/{key}": value for key, value in found.items()}
    np.savez(results_path, **results)


def compute(kind, tgt_len, mem_len, span, n_read, rate, most_queries):
    tpu_kernels.MOST_QUERIES = most_queries
    draw = np.random.default_rng(0).normal
    n_keys = mem_len + tgt_len
    shapes = {
        "segment": (N_ROWS, tgt_len, 3 * N_HEAD * D_HEAD),
        "memory": (N_ROWS, mem_len, 2 * N_HEAD * D_HEAD),
        "distance_keys": (n_keys, N_HEAD, D_HEAD),
        "content_bias": (N_HEAD, D_HEAD),
        "position_bias": (N_HEAD, D_HEAD),
    }
    tensors = {name: draw(size=shape).astype("float32") for name, shape in shapes.items()}
    upstream = draw(size=(N_ROWS, tgt_len, N_HEAD * D_HEAD)).astype("float32")
    if n_read is not None:
        starts = ops.convert_to_tensor(STARTS[:, :tgt_len])
        span = {"n_before": count_before(ops.convert_to_tensor(n_read), tgt_len, starts)}
    mask = make_attention_mask(tgt_len, mem_len, **span)
    if kind == "kernel":
        attend = functools.partial(tpu_attention.attend, interpret=True)
    else:
        attend = fused_attention.attend
    seed = ops.convert_to_tensor([5, 6]) if rate else None

    def run(*tensors):
        return attend(*tensors, mask, seed, rate=rate)

    attended, differentiate = jax.vjp(run, *map(ops.convert_to_tensor, tensors.values()))
    gradients = differentiate(ops.convert_to_tensor(upstream))
    results = {"attended": attended}
    for name, gradient in zip(tensors, gradients, strict=True):
        results[name] = gradient
    return results


if __name__ == "__main__":
    main(*sys.argv[1:])
