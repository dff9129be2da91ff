"""The speed of training and generation, relative to a large matrix product and a copy."""

import dataclasses
import math
import time

import numpy as np

from txl_tf import presets
from txl_tf.config import ModelConfig, TrainConfig
from txl_tf.config.parameters import list_matrices
from txl_tf.programs.checks.backend import (
    SPEED_SECONDS,
    Figures,
    SkippedError,
    has_accelerator,
    is_jax,
    measure_bandwidth,
    measure_peak,
    time_call,
)
from txl_tf.programs.checks.training import make_trainer


def check_speed_wt103() -> Figures:
    """Speed and memory of training the base model of WikiText-103."""
    return _measure_training("wt103_base")


def check_speed_enwik8() -> Figures:
    """Speed and memory of training the base model of enwik8."""
    if not has_accelerator():
        raise SkippedError("speed_wt103 has measured the preset demo")
    return _measure_training("enwik8_base")


def check_speed_generation() -> Figures:
    """Speed of generating one text with the base model of enwik8 and a full memory."""
    from txl_tf import LanguageModel, TransformerXL

    preset = presets.get(_choose_preset("enwik8_base"))
    evaluation = preset.evaluation
    lm = LanguageModel(TransformerXL(preset.model, seed=0), None, evaluation)
    prompt = np.arange(evaluation.mem_len, dtype=np.int32) % preset.model.n_token
    session = lm.start([prompt])
    session.draw(32)
    start, n_tokens = time.perf_counter(), 32
    session.draw(n_tokens)
    while time.perf_counter() - start < SPEED_SECONDS / 2:
        session.draw(32)
        n_tokens += 32
    speed = n_tokens / (time.perf_counter() - start)
    model = preset.model
    keys_and_values = 2 * model.n_layer * evaluation.mem_len * model.n_head * model.d_head
    n_bytes = 4 * (model.count_parameters() + keys_and_values)
    # A copy reads and writes each byte; generating a token only reads it.
    share = speed * n_bytes / measure_bandwidth()
    return {
        "preset": _choose_preset("enwik8_base"),
        "tokens/s": speed,
        "share of a copy": f"{share:.0%}",
    }


def _choose_preset(name: str) -> str:
    """Returns a preset for an accelerator, or a small one for a CPU."""
    return name if has_accelerator() else "demo"


def _measure_training(name: str) -> Figures:
    """Trains a preset in bfloat16 on random ids, whose frequencies follow Zipf's law."""
    preset = presets.get(_choose_preset(name))
    model = preset.model
    training = dataclasses.replace(preset.training, precision="bfloat16")
    n_rows, tgt_len = training.train_batch_size, training.tgt_len
    uniform = np.random.default_rng(0).uniform(size=(8, n_rows, tgt_len + 1))
    segments = (np.exp(uniform * math.log(model.n_token)) - 1).astype(np.int32)
    measure = _time_fit if is_jax() else _time_trainer
    seconds, figures = measure(model, training, segments)
    speed = n_rows * tgt_len / seconds
    flops = count_flops(model, training, segments) / seconds
    share = f"{flops / measure_peak('bfloat16'):.0%}"
    return {
        "preset": _choose_preset(name),
        "tokens/s": speed,
        "share of a large product": share,
    } | figures


def count_flops(model: ModelConfig, training: TrainConfig, segments: np.ndarray) -> float:
    """Returns the approximate number of FLOPs in the products of a training step.

    This is three times that of the forward pass: the matrices of the layers for each token, the
    keys and values of the memory, three products of attention, and the bins of the softmax that the
    tokens need.
    """
    n_tokens = training.train_batch_size * training.tgt_len
    width, d_heads = model.d_model, model.n_head * model.d_head
    matrices = sum(rows * columns for rows, columns in list_matrices(model))
    memory = 2 * width * d_heads * training.mem_len / training.tgt_len
    attention = 3 * (training.mem_len + training.tgt_len) * d_heads
    layers = matrices + model.n_layer * (memory + attention)
    softmax = sum(
        (high - low) * width * (float(np.mean((low <= segments) & (segments < high))) if low else 1)
        for low, high in model.bins
    )
    return 3 * 2 * n_tokens * (layers + softmax)


def _time_trainer(
    model: ModelConfig, training: TrainConfig, segments: np.ndarray
) -> tuple[float, Figures]:
    """Returns the seconds per step of `txl train`, and its memory."""
    import tensorflow as tf

    from txl_tf.training.dry_run import compile_activations, count_kept_memory
    from txl_tf.training.trainer import CallSegments

    if tf.config.list_logical_devices("GPU"):
        tf.config.experimental.reset_memory_stats("GPU:0")
    trainer = make_trainer(model, training)
    seconds = time_call(lambda: trainer.run(CallSegments(segments))) / len(segments)
    peak = trainer.read_gauges().get("peak_memory_bytes")
    account = sum(count_kept_memory(model, training).values())
    account += compile_activations(model, training)
    return seconds, {"peak GiB": _to_gib(peak), "GiB by XLA's account": account / 2**30}


def _time_fit(
    model: ModelConfig, training: TrainConfig, segments: np.ndarray
) -> tuple[float, Figures]:
    """Returns the seconds per step of `CausalLM` on JAX, and the memory of the process."""
    import jax

    from txl_tf import CausalLM

    lm = CausalLM(
        model,
        batch_size=training.train_batch_size,
        span=training.span,
        seed=0,
        dtype=f"mixed_{training.precision}",
    )
    lm.compile("adam")

    def step() -> None:
        for segment in segments:
            lm.train_on_batch(segment[:, :-1], segment[:, 1:])

    seconds = time_call(step) / len(segments)
    stats = jax.devices()[0].memory_stats() or {}  # unknown on a CPU
    peak = stats.get("peak_bytes_in_use")
    return seconds, {"peak GiB": _to_gib(peak)}


def _to_gib(n_bytes: float | None) -> float | str:
    return n_bytes / 2**30 if n_bytes else "unknown"
